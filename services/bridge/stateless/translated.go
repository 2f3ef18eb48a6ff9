package stateless

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/mcpserver"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/sessions"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// translated is a call of a client without sessions at a server that has them. It has a session
// there to itself, so that the server's questions to its client belong to this call.
//
//	serve ──▶ initialize ──▶ the request ──▶ take: the response ──▶ the client
//	                                           └─ the server asks ──▶ gather ──▶ the client gets
//	  the questions as the result of its request; the call is held
//	join: the client makes the request again, with answers ──▶ they go to the server, and the
//	  response to the client's second request
//
// It is safe for concurrent use.
type translated struct {
	ownRequests
	env     *env
	session *sessions.Session
	request mcp.Request
	server  translate.ServerInfo
	askable map[string]bool // the methods that the client can be asked
	heard   call.Cursor     // of the standalone stream, where another bridge has begun the call
	filter  translate.Filter
	// listener stores the changes that the client listens to; nil for another request, and until they are known.
	listener *listener
	rule     taskRule
	inner    json.RawMessage // the ID of the task that the server has made for the call; nil for none

	taskState
	answering sync.Mutex // held while a task's client answers; locked before mu
	sending   bool       // its answers are on their way to the server

	first  *call.Call      // the call whose request the server has; nil without one
	target *call.Call      // the call that gets the messages; nil while the call is held
	token  json.RawMessage // the progress token of target's request; nil for none
	turned chan struct{}   // closed when target changes, or has everything
	ready  []byte          // a response that came while the call was held
	ended  bool            // the client has cancelled the task, or cannot continue the call
	open   []question      // without an answer
	keys   string          // the prefix of their keys, if another bridge has given some
	rounds []string        // in which the client was asked, the newest last
	gather *time.Timer     // until the client is asked
}

// question is a request of the server's.
type question struct {
	translate.Question
	id  json.RawMessage
	key string // as the client knows it
}

const (
	// gatherFor is how long questions are gathered: a server may ask several at once.
	gatherFor = 20 * time.Millisecond
	// maxQuestions is how many a client may have to answer at a time.
	maxQuestions = 64
)

// newTranslated returns a call that [translated.serve] begins, or [translated.resume] continues.
func newTranslated(e *env, h *sessions.Session, r mcp.Request) *translated {
	t := &translated{env: e, session: h, request: r}
	t.ownRequests.session, t.rest = h.Scope, t
	return t
}

// connect takes a session at the MCP server for the call.
func (t *translated) connect(ctx context.Context) *rpc.Answer {
	h := t.session
	b, refused := t.env.server.UnusedSession(ctx, h.Demand.Asked(), t.request, t.client)
	if refused != nil {
		return refused
	}
	t.up, t.server = b.Up, b.Server
	h.Demand.Connected(b.ID, b.Version, t.request, t.server.Info, t.askable)
	if b.Attach != nil {
		b.Attach(h.Scope)
	}
	return nil
}

// serve serves the call until the client has its response, or the call no longer waits for the client.
func (t *translated) serve(ctx context.Context, c *call.Call) {
	if refused := t.connect(ctx); refused != nil {
		if why := context.Cause(ctx); why != nil {
			c.End(why)
			return
		}
		c.Refuse(*refused)
		return
	}
	t.mu.Lock()
	t.target, t.turned = c, make(chan struct{})
	t.mu.Unlock()
	switch t.request.Method {
	case mcp.MethodDiscover:
		t.answer(t.server.Discover(t.session.Host.Config.TaskAfter >= 0))
	case mcp.MethodListen:
		t.listenFor(ctx, c)
	default:
		t.hand(ctx, c)
	}
}

// hand hands the request to the server.
func (t *translated) hand(ctx context.Context, c *call.Call) {
	if t.request.LogLevel != "" && t.server.Can("logging", "") {
		_ = t.askServer(ctx, "logging/setLevel", map[string]string{"level": t.request.LogLevel}) // the call does without
	}
	id := t.takes(c)
	if t.mayAsk() {
		t.listen(ctx) // some servers ask there, and questions before that are lost
	}
	if !translate.Known(t.request.Method) {
		c.RefuseAs = unknownMethod
	}
	t.mu.Lock()
	if t.rule.atOnce {
		t.make()
	}
	t.taskSoon()
	t.mu.Unlock()
	if !c.Begin() {
		return
	}
	data, refused := t.asTask(ctx, c.Stream)
	if t.inner != nil {
		c.RefuseAs = noResult
	}
	t.request.Params = nil // they may be large, and a held call waits for long
	switch why := context.Cause(ctx); {
	case data != nil:
		t.up.Serve(ctx, c, t.client, data)
	case refused == nil:
		c.Answered(id)
	case why != nil:
		c.End(why)
	default:
		c.Refuse(*refused)
	}
	if errors.Is(context.Cause(ctx), host.ErrEnded) && !t.hasResponse() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), upstream.DialTimeout)
		defer cancel()
		_ = t.up.Send(within, t.client, upstream.Cancelled(id)) // it is over in any case
		if t.inner != nil {
			_ = t.askServer(within, mcp.MethodCancelTask, translate.Object{"taskId": t.inner}) // likewise
		}
	}
	t.linger(ctx)
}

// listenWithin is how long a call waits for the server's own stream: some servers send its header with its first
// message.
const listenWithin = 5 * time.Second

// listen begins to listen to the server's own stream.
func (t *translated) listen(ctx context.Context) {
	select {
	case <-t.session.Listen(nil):
	case <-t.session.Host.Times.After(listenWithin):
	case <-ctx.Done():
	}
}

// takes makes a call the one whose request the server has, and returns the request's ID there: the name of
// the call's stream, which no other request of the session has.
func (t *translated) takes(c *call.Call) json.RawMessage {
	id, _ := json.Marshal(c.Stream) // a text always can be written
	c.SentAs(id)
	c.To = t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first, t.token = c, t.request.Meta["progressToken"]
	if t.made == nil {
		t.target = c
	}
	return id
}

// resume continues a call of another bridge.
func (t *translated) resume(ctx context.Context, c *call.Call, client http.Header) {
	t.takes(c)
	t.mu.Lock()
	t.taskSoon()
	t.mu.Unlock()
	if t.mayAsk() {
		t.session.Listen(&t.heard)
	}
	t.up.Resume(ctx, c, client)
	t.linger(ctx)
}

// mayAsk reports whether the server may ask the client anything.
func (t *translated) mayAsk() bool {
	return slices.Contains(slices.Collect(maps.Values(t.askable)), true)
}

// Held reports whether the call waits for its client.
func (t *translated) Held() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first != nil && t.target == nil && !t.over
}

// unknownMethod returns the answer to a client whose method the server refuses to read: some servers do that with a
// status alone.
func unknownMethod(a rpc.Answer) rpc.Answer {
	if upstream.SaysNothing(a.Status) {
		return a
	}
	return upstream.Failure(http.StatusNotFound, rpc.CodeMethodNotFound, "Method not found")
}

// noResult returns the answer to a client whose call runs as a task of the server, which refuses the task's result: a
// repeated call begins another task.
func noResult(rpc.Answer) rpc.Answer {
	return upstream.OutcomeUnknown("the MCP server has begun the call, and refuses its result")
}

// linger waits until the client has the response that came while the client gathered answers.
func (t *translated) linger(ctx context.Context) {
	for {
		t.mu.Lock()
		over, turned := t.over || t.ready == nil, t.turned
		t.mu.Unlock()
		if over {
			return
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return
		}
	}
}

// hasResponse reports whether the server has no more work for the call.
func (t *translated) hasResponse() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over && !t.ended
}

// turn changes the target, and wakes the callers that wait for that. The caller holds the lock.
func (t *translated) turn(to *call.Call) {
	t.target = to
	close(t.turned)
	t.turned = make(chan struct{})
}

// answer gives the client a result.
func (t *translated) answer(result json.RawMessage, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.deliver(rpc.ErrorMessage(nil, rpc.CodeInternal, err.Error(), nil))
		return
	}
	t.deliver(translate.Message(map[string]any{"id": nil, "result": result}))
}

// deliver gives the client the response, or keeps it until the client repeats the request. The caller holds
// the lock.
func (t *translated) deliver(response []byte) {
	if t.made != nil {
		t.over = true
		t.made.respond(response)
		t.turn(nil)
		return
	}
	if t.target == nil {
		t.ready = response
		return
	}
	t.over = true
	t.final(t.target, response)
	t.turn(nil)
}

// final stores the last event of the stream that a client waits for. It reports whether the client receives the
// response, and not the error of one that is too large.
func (t *translated) final(c *call.Call, response []byte) (fits bool) {
	fits = c.Respond(response)
	if ids := c.IDs(); c != t.first && len(ids) > 0 {
		c.Answered(ids[0])
	}
	return fits
}

// Take takes a message of the server that belongs to the call, or to none.
func (t *translated) Take(m rpc.Message, it call.Item) error {
	switch {
	case m.IsResponse():
		t.takeResponse(m)
	case m.IsRequest():
		t.takeRequest(m)
	default:
		return t.takeNotification(m, it)
	}
	return nil
}

func (t *translated) takeResponse(m rpc.Message) {
	if m.Error == nil {
		t.answer(t.server.Result(t.request.Method, m.Result))
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deliver(translate.Message(map[string]any{"id": nil, "error": translate.Error(m.Error)}))
}

// takeRequest takes a question of the server's to its client. A question that is open already was sent again: another
// bridge was lost before it wrote down that it had the question, and the client was asked, as the state of the task
// shows.
func (t *translated) takeRequest(m rpc.Message) {
	q := question{translate.Question{Method: *m.Method, Params: m.Params}, m.ID, ""}
	if q.Method == translate.MethodPing {
		t.reply(q, json.RawMessage("{}"))
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.ContainsFunc(t.open, func(other question) bool { return rpc.IDKey(other.id) == rpc.IDKey(q.id) }) {
		return
	}
	if t.first == nil || t.over || !t.askable[q.Method] || len(t.open) == maxQuestions || !q.Fits() {
		t.session.Go(func() {
			_ = t.send(rpc.ErrorMessage(q.id, rpc.CodeMethodNotFound, "the client of this call cannot be asked this", nil))
		})
		return
	}
	q.key = t.keys + "q" + strconv.FormatUint(t.numbers.Add(1), 10)
	t.open = append(t.open, q)
	t.session.Asking.Store(true)
	t.gatherSoon()
}

// questionsLogged notes that the log has all open questions, unless the service ends: then that is unknown. The caller holds
// the lock.
func (t *translated) questionsLogged() { t.session.Asking.Store(t.session.Host.Life.Err() != nil) }

// gatherSoon has the client asked after [gatherFor]. The caller holds the lock.
func (t *translated) gatherSoon() {
	if (t.target != nil || t.made != nil) && t.gather == nil {
		t.gather = time.AfterFunc(gatherFor, func() { t.session.Go(t.askClient) })
	}
}

// askClient gives the client the server's questions as the result of its request. The call is held
// from then on.
func (t *translated) askClient() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gather = nil
	if t.made != nil {
		t.askTask()
		return
	}
	c := t.target
	if c == nil || len(t.open) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(t.session.Host.Life, t.session.Host.Config.CloseTimeout())
	defer cancel()
	if err := t.session.Hold(ctx); err != nil {
		t.deliver(rpc.ErrorMessage(nil, rpc.CodeInternal, "the bridge cannot be reached at the moment", nil))
		t.session.Finish(host.ErrEnded) // the server waits for the answer
		return
	}
	questions := map[string]translate.Question{}
	for _, q := range t.open {
		questions[q.key] = q.Question
	}
	t.rounds = append(t.rounds, rand.Text())
	state := mcp.State{Session: t.session.Name, Life: t.session.Life, Round: t.rounds[len(t.rounds)-1]}
	t.first.PauseIdleTimer()
	if !t.final(c, translate.Message(map[string]any{"id": nil, "result": t.server.InputRequired(questions, state.String())})) {
		t.giveUp() // the server waits for the answer, and the client has no state to give it with
		return
	}
	t.questionsLogged()
	t.turn(nil)
	t.expiry = t.session.Host.Pauses.AfterFunc(t.session.Host.Config.InputWait, func() {
		if t.Held() { // else its client has repeated the request at this moment
			t.session.Finish(host.ErrEnded)
		}
	})
}

// giveUp ends the call without the server's response. The caller holds the lock.
func (t *translated) giveUp() {
	t.over, t.ended = true, true
	t.turn(nil)
	t.session.Finish(host.ErrEnded)
}

// reply answers a question of the server's.
func (t *translated) reply(q question, result json.RawMessage) {
	t.session.Go(func() { _ = t.send(q.answer(result)) })
}

// answer returns the response to a question.
func (q question) answer(result json.RawMessage) []byte {
	return translate.Message(map[string]any{"id": q.id, "result": result})
}

// takeAnswers gives the server the answers to its questions. The caller holds the lock.
func (t *translated) takeAnswers(answers translate.Object) {
	t.open = slices.DeleteFunc(t.open, func(q question) bool {
		result, ok := answers[q.key]
		if ok {
			t.reply(q, result)
		}
		return ok
	})
}

// send sends a response to the server, again when the server cannot be reached: it waits for the response, and
// takes it once. The error reports why the server has none.
func (t *translated) send(data []byte) error {
	ctx, cancel := context.WithTimeout(t.session.Ctx, t.session.Host.Config.OpenTimeout)
	defer cancel()
	var a rpc.Answer
	err := retry.Do(ctx, func() error {
		if a = t.up.Send(ctx, t.client, data); upstream.SaysNothing(a.Status) || a.Status == http.StatusRequestTimeout {
			return upstream.ErrUnanswered
		}
		return nil
	})
	if err != nil || a.Status != http.StatusAccepted {
		t.session.Host.Logger.Warn("the MCP server did not take its client's answer", "session", t.session.Name, "status", a.Status)
	}
	if err != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (t *translated) takeNotification(m rpc.Message, it call.Item) error {
	t.mu.Lock()
	filter, listener, over := t.filter, t.listener, t.target == nil
	t.mu.Unlock()
	if listener != nil {
		if it.Data = translate.Listened(m, filter, t.request.ID); it.Data == nil || over {
			return nil
		}
		return listener.Put(it)
	}
	t.mu.Lock()
	defer t.mu.Unlock() // no timer gives the client its response meanwhile
	c := t.target
	switch {
	case c == nil:
		return nil // a task has a state, and no more
	case t.request.Method == mcp.MethodListen:
		return nil // the client first receives the acknowledgement
	case m.Is("notifications/progress"):
		it.Data = translate.Progress(m, t.token)
	case m.Is("notifications/message"):
		if t.request.LogLevel == "" {
			return nil
		}
	default:
		return nil
	}
	if it.Data == nil || c.Repeated(it) {
		return nil
	}
	return c.StoreOrDrop(it)
}

// Put takes the error that ends the server's request.
func (t *translated) Put(it call.Item) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deliver(it.Data)
	return nil
}

// unknownState refuses the requestState of a call that is over, or of another client's.
func unknownState() rpc.Answer {
	return upstream.Failure(mcp.ErrState.Status, mcp.ErrState.Code, mcp.ErrState.Message)
}

// join makes a client's repeated request the target of the messages, and gives its answers to the server.
func (t *translated) join(ctx context.Context, c *call.Call, r mcp.Request) {
	state, _, _ := r.State()
	var answers translate.Object
	if value := r.Params["inputResponses"]; value != nil && rpc.Unmarshal(value, &answers) != nil {
		c.Refuse(errAnswers)
		return
	}
	t.mu.Lock()
	round := slices.Index(t.rounds, state.Round)
	if t.over || round < 0 {
		t.mu.Unlock()
		c.Refuse(unknownState())
		return
	}
	if t.made != nil { // its client has not received the task's ID
		t.final(c, t.made.created())
		t.mu.Unlock()
		return
	}
	if t.expiry != nil {
		t.expiry.Stop()
	}
	if round == len(t.rounds)-1 { // else these are answers that were taken before
		t.takeAnswers(answers)
	}
	t.turn(c)
	t.token = r.Meta["progressToken"]
	switch {
	case t.ready != nil:
		response := t.ready
		t.ready = nil
		t.deliver(response)
	case len(t.open) > 0: // questions that the client left out, or that came meanwhile
		t.gatherSoon()
	default:
		t.first.ResumeIdleTimer()
	}
	t.taskSoon()
	turned := t.turned
	if t.target != c {
		turned = nil
	}
	t.mu.Unlock()
	if turned != nil {
		select {
		case <-turned:
			if !c.Done() {
				c.Refuse(errMadeAgain)
			}
		case <-ctx.Done():
			c.End(context.Cause(ctx))
		}
	}
}

// errMadeAgain refuses a repeated request whose client has made it once more: the newer request gets the response.
var errMadeAgain = upstream.Failure(http.StatusConflict, rpc.CodeInvalid, "the client has made the request again")

// asTask returns the request for the server: the client's own, or, for a tool of 2025-11-25 whose calls have
// to be tasks, the request for the result of the task, which asTask makes first. It returns nothing when the
// server has answered the request without a task.
func (t *translated) asTask(ctx context.Context, id string) (data []byte, refused *rpc.Answer) {
	needs := t.request.Method == mcp.MethodCallTool && t.server.HasTaskTools() && t.needsTask(ctx, t.request.Name, &t.env.support)
	if !needs {
		return translate.Request(t.request, id, nil), nil
	}
	own := t.ownID()
	m, refused := t.exchange(ctx, own, translate.Request(t.request, own, translate.Object{"task": json.RawMessage("{}")}))
	if refused != nil {
		return nil, refused
	}
	var made struct {
		Task struct {
			ID json.RawMessage `json:"taskId"`
		} `json:"task"`
	}
	if m.Error != nil || rpc.Unmarshal(m.Result, &made) != nil || made.Task.ID == nil {
		t.takeResponse(m)
		return nil, nil
	}
	t.inner = made.Task.ID
	return translate.Message(map[string]any{"id": id, "method": "tasks/result", "params": translate.Object{"taskId": t.inner}}), nil
}

// listenFor gives the client the changes that it asked for, until ctx ends.
func (t *translated) listenFor(ctx context.Context, c *call.Call) {
	filter, err := translate.ParseFilter(t.request)
	if err != nil {
		c.Refuse(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalidParams, "Invalid params: notifications is missing."))
		return
	}
	t.listen(ctx)
	filter = filter.Of(t.server)
	uris := slices.Compact(slices.Sorted(slices.Values(filter.URIs)))
	subscribed := []string{}
	for _, uri := range uris[:min(len(uris), mcpserver.MaxSubscriptions)] {
		if err := t.askServer(ctx, "resources/subscribe", map[string]string{"uri": uri}); err == nil {
			subscribed = append(subscribed, uri)
		}
	}
	l := newListener(ctx, t.env, t.session, c, t.request)
	filter.URIs, filter.Tasks = subscribed, l.taskIDs()
	t.mu.Lock() // messages that come meanwhile wait
	err = l.acknowledge(ctx, call.Item{Data: translate.Acknowledged(filter, t.request.ID)}, filter)
	t.filter, t.listener = filter, l
	t.mu.Unlock()
	if err != nil {
		c.End(err)
		return
	}
	<-ctx.Done()
	l.storing.Lock() // the state of a task may be on its way
	defer l.storing.Unlock()
	switch why := context.Cause(ctx); {
	case errors.Is(why, host.ErrEnded), errors.Is(why, upstream.ErrStopping):
		c.End(why)
	default: // the server has ended the session: the client listens again
		t.answer(translate.ListenEnd(t.request.ID), nil)
	}
}
