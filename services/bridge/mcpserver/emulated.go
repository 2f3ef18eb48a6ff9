package mcpserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// emulatedSession is a session of a client of earlier revisions at a server that has none: the bridge
// keeps the state of the session, and each request carries it. It is safe for concurrent use.
//
//	serve ──▶ a request of the new revision ──▶ a result ──▶ the client
//	              ▲                              └─ the server's questions ──▶ the client, on the same stream
//	              └────────────────────────────────── send: the client's answers
type emulatedSession struct {
	remote
	server     *Server
	client     translate.Client
	discovered translate.Discovered

	missed bool // another bridge has listened before; the changes since are unknown

	saving sync.Mutex // held while level or uris are stored and changed

	mu      sync.Mutex
	level   string                         // of log messages; empty for none
	uris    []string                       // of the resources that the client subscribed to
	changed chan struct{}                  // closed when uris change
	waiting map[string]chan rpc.Message    // for the client's answers, by [rpc.IDKey]
	tools   map[string]map[string][]string // repeated arguments by tool and field; nil: not known yet

	storing sync.Mutex // of the standalone stream
}

func (s *Server) newEmulatedSession(m records.OwnSession) *emulatedSession {
	return &emulatedSession{
		remote: remote{host: s.host, endpoint: s.endpoint, stateless: true}, server: s, client: m.Client, discovered: m.Discovered,
		level: m.Level, uris: m.URIs, changed: make(chan struct{}), waiting: map[string]chan rpc.Message{},
	}
}

// errRevisions is answered for an MCP server that has no initialize any more. Its own answer
// names revisions that no edge speaks: a client would ask for one of them, in vain.
var errRevisions = upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, "the MCP server speaks only revisions of MCP that Rejoin does not")

// dialStateless asks a server without sessions for its revisions and capabilities, for a client that begins a session.
func (s *Server) dialStateless(ctx context.Context, c rpc.Ask, m rpc.Message) (Connected, *rpc.Answer) {
	u := s.newEmulatedSession(records.OwnSession{Client: translate.ParseClient(m)})
	answer, refused := u.exchange(ctx, c.Header, rpc.Message{ID: json.RawMessage(`"discover"`), Method: new(mcp.MethodDiscover)}, nil, nil)
	if refused != nil {
		return Connected{}, refused
	}
	if answer.Result == nil || rpc.Unmarshal(answer.Result, &u.discovered) != nil || !slices.Contains(u.discovered.Versions, mcp.Stateless) {
		return Connected{}, &errRevisions
	}
	return Connected{
		Up: u, Version: u.client.Version, Response: u.discovered.Initialized(m.ID, u.client),
		stateless: u.state(),
	}, nil
}

// state returns the session's state for the registry: no more than the next bridge needs. The
// caller holds saving, unless the session is new.
func (u *emulatedSession) state() *records.OwnSession {
	return &records.OwnSession{
		Client: u.client, Discovered: translate.Discovered{Capabilities: u.discovered.Capabilities}, Level: u.level, URIs: u.uris,
	}
}

// exchange makes a request, passes the messages before the response to take, and returns the response.
// An answer that is no success is for the client.
func (u *emulatedSession) exchange(ctx context.Context, client http.Header, m rpc.Message, more translate.Object, take func([]byte) error) (rpc.Message, *rpc.Answer) {
	u.mu.Lock()
	level := u.level
	u.mu.Unlock()
	data := u.client.Later(m, level, more)
	resp, refused := u.post(ctx, u.repeat(client, m), data) //nolint:bodyclose // Finish closes it
	if refused != nil {
		if e, err := rpc.ParseMessage(refused.Data); err == nil && e.Error != nil && string(e.ID) != "null" {
			return e, nil // an error of JSON-RPC, with the status of HTTP that belongs to it
		}
		if refused.Status == http.StatusNotFound {
			refused.Status = http.StatusBadGateway // 404 would mean that the client's session has ended
		}
		return rpc.Message{}, refused
	}
	defer upstream.Finish(resp)
	got, _, err := u.response(resp, m.ID, take)
	if err == nil {
		return got, nil
	}
	if why := context.Cause(ctx); why != nil {
		err = why
	}
	return rpc.Message{}, new(u.failure(err))
}

func (u *emulatedSession) failure(err error) rpc.Answer {
	switch {
	case errors.Is(err, upstream.ErrTooLarge):
		return upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, u.host.TooLarge(""))
	case errors.Is(err, upstream.ErrUnanswered):
		return upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, upstream.ErrUnanswered.Error())
	default:
		return upstream.Unreachable(err)
	}
}

// repeat returns a client's header with the fields that repeat members of a request.
func (u *emulatedSession) repeat(client http.Header, m rpc.Message) http.Header {
	h := upstream.WithoutRepeated(client)
	h.Set(mcp.HeaderVersion, mcp.Stateless)
	h.Set(mcp.HeaderMethod, *m.Method)
	if param := mcp.NameOf(*m.Method); param != "" {
		var name string
		_ = json.Unmarshal(m.Param(param), &name) // the server refuses one without
		h.Set(mcp.HeaderName, mcp.Encode(name))
		u.mu.Lock()
		fields := u.tools[name]
		u.mu.Unlock()
		for field, path := range fields {
			if value, ok := translate.Argument(m.Param("arguments"), path); ok && *m.Method == mcp.MethodCallTool {
				h.Set(mcp.ParamPrefix+field, mcp.Encode(value))
			}
		}
	}
	return h
}

// learnTools reads which arguments of each tool its calls have to repeat; once, unless again.
func (u *emulatedSession) learnTools(ctx context.Context, client http.Header, again bool) {
	u.mu.Lock()
	known := u.tools != nil
	u.mu.Unlock()
	if known && !again {
		return
	}
	type listed struct {
		Name        string          `json:"name"`
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	tools := map[string]map[string][]string{}
	translate.EachTool(func(params translate.Object) json.RawMessage {
		m := rpc.Message{ID: json.RawMessage(`"rejoin-tools"`), Method: new("tools/list")}
		answer, _ := u.exchange(ctx, client, m, params, nil)
		return answer.Result // none: the call is made without its fields, and refused if they are missing
	}, func(tool listed) {
		if fields := translate.Headers(tool.InputSchema); len(fields) > 0 {
			tools[tool.Name] = fields
		}
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tools = tools
}

// Serve forwards requests, one after the other, and stores the server's messages for them. A batch may have the
// client's answers too.
func (u *emulatedSession) Serve(ctx context.Context, c *call.Call, client http.Header, data []byte) {
	u.Send(ctx, client, data)
	c.CancelAtOnce = true
	ctx, p := c.WithIdleTimer(ctx)
	defer p.End()
	all, _, err := rpc.Messages(data)
	if err != nil {
		c.End(err)
		return
	}
	for _, data := range all {
		m, err := rpc.ParseMessage(data)
		if err != nil || !m.IsRequest() {
			continue
		}
		response, refused := u.answer(ctx, p, c, client, m)
		if why := context.Cause(ctx); why != nil && response == nil {
			c.End(why)
			return
		}
		if refused != nil {
			if len(all) == 1 {
				c.Refuse(*refused)
				return
			}
			response = upstream.About(*refused, []json.RawMessage{m.ID}).Data
		}
		c.Accept()
		if err := c.Take(call.Item{Data: response}); err != nil {
			c.End(err)
			return
		}
	}
	c.End(nil)
}

// answer returns the response to a request: requests about the session are answered here.
func (u *emulatedSession) answer(ctx context.Context, p *upstream.IdleTimer, c *call.Call, client http.Header, m rpc.Message) ([]byte, *rpc.Answer) {
	var value string
	var err error
	switch *m.Method {
	case translate.MethodPing:
	case "logging/setLevel":
		_ = json.Unmarshal(m.Param("level"), &value) // without one it is empty
		err = u.change(ctx, c.Scope, func(is *records.OwnSession) { is.Level = value })
	case "resources/subscribe", "resources/unsubscribe":
		if !u.discovered.Can("resources", "subscribe") || json.Unmarshal(m.Param("uri"), &value) != nil {
			return rpc.ErrorMessage(m.ID, rpc.CodeMethodNotFound, "Method not found", nil), nil
		}
		err = u.change(ctx, c.Scope, func(is *records.OwnSession) {
			is.URIs = slices.DeleteFunc(slices.Clone(is.URIs), func(other string) bool { return other == value })
			if *m.Method == "resources/subscribe" {
				is.URIs = append(is.URIs, value)
			}
		})
	default:
		return u.request(ctx, p, c, client, m)
	}
	if err != nil {
		return rpc.ErrorMessage(m.ID, rpc.CodeInternal, err.Error(), nil), nil
	}
	return translate.Message(map[string]any{"id": m.ID, "result": struct{}{}}), nil
}

const (
	// MaxSubscriptions bounds the resources that a client may subscribe to.
	MaxSubscriptions = 1000
	// MaxSettings bounds their URIs and the level in the metadata of a session, which is as large
	// as that of other sessions may be.
	MaxSettings = 16 << 10
)

// ErrSubscriptions is returned when a client subscribes to more than the bridge keeps for it.
var ErrSubscriptions = errors.New("there are too many subscriptions, or their URIs are too long")

// change changes the client's settings: in the session's metadata for the next bridge, and then here.
// Errors are for the client.
func (u *emulatedSession) change(ctx context.Context, h *call.Scope, edit func(*records.OwnSession)) error {
	u.saving.Lock()
	defer u.saving.Unlock()
	next := u.state()
	edit(next)
	settings, err := json.Marshal([]any{next.Level, next.URIs}) // as they are stored: a & takes six bytes
	if err != nil || len(next.URIs) > MaxSubscriptions || len(settings) > MaxSettings {
		return ErrSubscriptions
	}
	if err := u.save(ctx, h, next); err != nil {
		u.host.Logger.Info("the settings of a client are not stored", "session", h.Name, "error", err)
		if full, ok := errors.AsType[*session.FullError](err); ok {
			return full
		}
		return errors.New("this cannot be stored now")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Equal(u.uris, next.URIs) {
		close(u.changed)
		u.changed = make(chan struct{})
	}
	u.level, u.uris = next.Level, next.URIs
	return nil
}

func (u *emulatedSession) save(ctx context.Context, h *call.Scope, is *records.OwnSession) error {
	s := u.host
	data, err := json.Marshal(u.server.Metadata(Connected{Version: u.client.Version, stateless: is}))
	if err != nil {
		return err
	}
	rec, _ := s.Backend.Sessions.Session(h.Name)
	leave, err := s.Limits.Grow(rec.Holder(), session.Usage{MetadataBytes: max(0, int64(len(data))-rec.Usage().MetadataBytes)})
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, s.Config.CloseTimeout())
	defer cancel()
	return s.SetMetadata(ctx, h.Name, h.Life, data)
}

// maxRounds is how often a server may ask for one request.
const maxRounds = 16

// request makes a request, again and again with the client's answers.
func (u *emulatedSession) request(ctx context.Context, p *upstream.IdleTimer, c *call.Call, client http.Header, m rpc.Message) ([]byte, *rpc.Answer) {
	if *m.Method == mcp.MethodCallTool {
		u.learnTools(ctx, client, false)
	}
	take := func(data []byte) error {
		p.Came()
		defer p.Wait()
		if _, err := rpc.ParseMessage(data); err == nil { // else the request may still be refused with a status
			c.Accept()
		}
		return c.Take(call.Item{Data: data})
	}
	var more translate.Object
	for round, retried := 0, false; ; round++ {
		answer, refused := u.exchange(ctx, client, m, more, take)
		if refused != nil {
			return nil, refused
		}
		if answer.Error != nil {
			if !retried && *m.Method == mcp.MethodCallTool && codeOf(answer.Error) == mcp.CodeHeaderMismatch {
				retried = true
				u.learnTools(ctx, client, true)
				continue
			}
			return translate.Message(map[string]any{"id": m.ID, "error": answer.Error}), nil
		}
		required, asks, err := translate.ParseRequired(answer.Result)
		switch {
		case err != nil, asks && round == maxRounds:
			return rpc.ErrorMessage(m.ID, rpc.CodeInternal, translate.ErrResult.Error(), nil), nil
		case !asks:
			return translate.Message(map[string]any{"id": m.ID, "result": translate.Earlier(*m.Method, answer.Result)}), nil
		}
		p.Came() // the bridge waits for the client
		answers, failed := u.askAll(ctx, c, required)
		if context.Cause(ctx) != nil {
			return nil, nil
		}
		if failed != nil {
			return translate.Message(map[string]any{"id": m.ID, "error": failed}), nil
		}
		p.Wait()
		more = required.Again(answers)
	}
}

func codeOf(e json.RawMessage) int {
	var f translate.Failure
	_ = rpc.Unmarshal(e, &f) // 0 is no code
	return f.Code
}

// stateOnlyPause is the pause before a request is made again without a question to the client.
const stateOnlyPause = 250 * time.Millisecond

// askAll asks the client, on the stream of its request, and waits for the answers. An error of the
// client's ends the request, and so does a question that cannot be stored.
func (u *emulatedSession) askAll(ctx context.Context, c *call.Call, r translate.Required) (answers translate.Object, failed json.RawMessage) {
	c.Accept() // also without a question: the server has begun the request
	if len(r.Questions) == 0 {
		u.host.Pause(ctx, stateOnlyPause)
		return nil, nil
	}
	answers, waiting := translate.Object{}, map[string]chan rpc.Message{}
	for _, key := range slices.Sorted(maps.Keys(r.Questions)) {
		id := "rejoin-" + rand.Text()
		answer, forget := u.expect(strconv.Quote(id))
		defer forget() //nolint:gocritic // a few
		waiting[key] = answer
		q := r.Questions[key]
		question := map[string]any{"id": id, "method": q.Method}
		if q.Params != nil {
			question["params"] = q.Params
		}
		if _, err := c.Put(call.Item{Data: translate.Message(question)}); err != nil {
			m, _ := rpc.ParseMessage(u.failure(err).Data) // it is ours
			return nil, m.Error
		}
	}
	late := make(chan struct{})
	timer := u.host.Pauses.AfterFunc(u.host.Config.InputWait, func() { close(late) })
	defer timer.Stop()
	for key, answer := range waiting {
		select {
		case m := <-answer:
			if m.Error != nil {
				return nil, m.Error
			}
			answers[key] = m.Result
		case <-late:
			return nil, json.RawMessage(fmt.Sprintf(`{"code":%d,"message":"the client did not answer in time"}`, rpc.CodeInternal))
		case <-ctx.Done():
			return nil, nil
		}
	}
	return answers, nil
}

// expect returns the channel that gets the client's answer to the request with this ID, until forget is called.
func (u *emulatedSession) expect(id string) (answer chan rpc.Message, forget func()) {
	key := rpc.IDKey([]byte(id))
	answer = make(chan rpc.Message, 1)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting[key] = answer
	return answer, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.waiting, key)
	}
}

// Send takes the client's answers. Notifications end at the bridge: the server has no session that
// they could be about.
func (u *emulatedSession) Send(_ context.Context, _ http.Header, data []byte) rpc.Answer {
	all, _, err := rpc.Messages(data)
	if err != nil {
		return upstream.Failure(http.StatusBadRequest, rpc.CodeParse, err.Error())
	}
	for _, data := range all {
		m, err := rpc.ParseMessage(data)
		if err != nil || !m.IsResponse() {
			continue
		}
		u.mu.Lock()
		answer := u.waiting[rpc.IDKey(m.ID)]
		delete(u.waiting, rpc.IDKey(m.ID))
		u.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	}
	return rpc.Answer{Status: http.StatusAccepted}
}
