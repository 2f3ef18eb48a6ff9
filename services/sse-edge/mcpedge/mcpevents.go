package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/inspect"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// MCP Events, after a sketch that may still change (modelcontextprotocol/experimental-ext-triggers-events,
// docs/design-sketch-proposal.md, commit 082166f). A client of revision 2026-07-28 follows a stream of
// a session by the cursor loop of /v1: the sketch's cursor is an event ID, truncated is a gap.

// The methods of the sketch that the edge serves. Webhooks are left out.
const (
	eventsPrefix = "events/"
	eventsList   = eventsPrefix + "list"
	eventsPoll   = eventsPrefix + "poll"
	eventsStream = eventsPrefix + "stream"
)

// The codes of the sketch, besides those of JSON-RPC.
const (
	codeNotFound  = -32011
	codeForbidden = -32012
	codeExhausted = -32013
)

const (
	// eventsName is the one event type. Its arguments name a stream.
	eventsName = "rejoin.stream"
	// nextPollMS is when an idle client is to poll again, in milliseconds. A client that wants events
	// sooner uses events/stream.
	nextPollMS = 5000
)

// eventTypes is the result of events/list.
var eventTypes = json.RawMessage(`{"resultType":"complete","events":[{"name":"` + eventsName + `",` +
	`"description":"The messages of one stream of a session.","delivery":["push","poll"],` +
	`"inputSchema":{"type":"object","properties":{"session":{"type":"string","description":"Name of the session."},` +
	`"stream":{"type":"string","description":"Name of the stream."}},"required":["session","stream"]},` +
	`"payloadSchema":{"description":"The message, as it was published: any JSON value."}}]}`)

// eventsParams are the parameters of events/poll and events/stream.
type eventsParams struct {
	Name      *string `json:"name"`
	Arguments struct {
		Session string `json:"session"`
		Stream  string `json:"stream"`
	} `json:"arguments"`
	Cursor    *string `json:"cursor"`
	MaxAgeMS  *int64  `json:"maxAgeMs"`
	MaxEvents *int    `json:"maxEvents"`
}

// request returns the subscriber's request.
func (p eventsParams) request(now time.Time) (req subscriber.Request, err error) {
	switch {
	case p.Name == nil:
		return req, eventsInvalid("name is missing.")
	case *p.Name != eventsName:
		return req, &refusal.Error{Status: http.StatusOK, Code: codeNotFound, Message: "NotFound: There is no such event type.", Data: map[string]string{"kind": "event"}}
	case p.MaxAgeMS != nil && *p.MaxAgeMS < 0:
		return req, eventsInvalid("maxAgeMs is negative.")
	case p.MaxEvents != nil && *p.MaxEvents < 1:
		return req, eventsInvalid("maxEvents is less than 1.")
	case p.Cursor != nil && *p.Cursor == "":
		return req, eventsInvalid("cursor is empty.")
	}
	if err := event.CheckSession(p.Arguments.Session); err != nil {
		return req, eventsInvalid("arguments.session: " + err.Error() + ".")
	}
	if err := event.CheckStream(p.Arguments.Stream); err != nil {
		return req, eventsInvalid("arguments.stream: " + err.Error() + ".")
	}
	req.At = window.Place{Session: p.Arguments.Session, Stream: p.Arguments.Stream}
	if req.Limit = subscriber.DefaultLimit; p.MaxEvents != nil {
		req.Limit = min(*p.MaxEvents, subscriber.MaxLimit)
	}
	if p.Cursor == nil {
		req.Start.Now = true
		return req, nil
	}
	req.Start.After = *p.Cursor
	if at := now.UnixMilli(); p.MaxAgeMS != nil && *p.MaxAgeMS < at {
		since := (at - *p.MaxAgeMS) * int64(time.Millisecond)
		req.Filter = &delivery.Filter{Since: since, Text: "since " + strconv.FormatInt(since, 10)}
	}
	return req, nil
}

func eventsInvalid(message string) error {
	return &refusal.Error{Status: http.StatusBadRequest, Code: rpc.CodeInvalidParams, Message: "Invalid params: " + message}
}

// eventsPost answers a request about events. Its client may read the same streams as at /v1.
func (s *Service) eventsPost(c *fiber.Ctx, who caller, r mcp.Request, body []byte) (result string, err error) {
	defer func() {
		if err != nil {
			result, err = postRefused, eventsRefusal(err, r.ID)
		}
	}()
	switch r.Method {
	case eventsList:
		return direct(c, response(r.ID, eventTypes), nil)
	case eventsPoll, eventsStream:
	default:
		return "", &refusal.Error{Status: http.StatusNotFound, Code: rpc.CodeMethodNotFound, Message: "Method not found: " + r.Method}
	}
	var m struct {
		Params eventsParams `json:"params"`
	}
	if rpc.Unmarshal(body, &m) != nil {
		return "", eventsInvalid("a parameter has a wrong type.")
	}
	req, err := m.Params.request(time.Now())
	if err == nil {
		req.At.Life, err = s.subs.Authorize(c, req.At.Session, who.grants)
	}
	if err != nil {
		return "", err
	}
	req.Expires, req.Guest = who.grants.Expires, s.subs.GuestOf(who.grants, req.At)
	if r.Method == eventsPoll {
		return postJSON, s.subs.Page(c, req, eventsPage(r.ID))
	}
	conn, err := s.openStream(c, req, req.At.Session)
	if err != nil {
		return "", err
	}
	form := &eventsForm{Connection: conn, service: s, id: r.ID}
	conn.Format, conn.Companion, conn.Chunked, conn.Continues = form, form, c.Request().Header.IsHTTP11(), true
	conn.Filter, conn.Expires, conn.Revoked = req.Filter, req.Expires, s.subs.Revoked(req.Guest)
	s.metrics.connections.Inc()
	return postStream, subscriber.SendStream(c, conn, delivery.Beginning{Fresh: conn.Reader.Fresh, Resumes: req.Start.After != "", Position: conn.Reader.Cursor})
}

// eventsRefusal returns an error with the number that the sketch has for it.
func eventsRefusal(err error, id json.RawMessage) error {
	r := *refusal.From(err)
	r.ID = id
	if _, ok := errors.AsType[*refusal.Error](err); ok {
		return &r
	}
	p := web.AsProblem(err)
	r.Cause = p.Unwrap()
	switch {
	case p.Code == web.CodeInsufficientScope:
		r.Code, r.Message = codeForbidden, "Forbidden"
	case p.Code == web.CodeNotFound:
		r.Status, r.Code, r.Message = http.StatusOK, codeNotFound, "NotFound: There is no such session."
	case errors.Is(err, subscriber.ErrNoRoom):
		r.Code, r.Message, r.Data = codeExhausted, "ResourceExhausted", map[string]string{"limit": "connections"}
	}
	return &r
}

// eventsPage returns the form of the sketch's pages.
func eventsPage(id json.RawMessage) subscriber.PageForm {
	return func(b []byte, r *cursor.Reader, step cursor.Step) ([]byte, error) {
		last := len(step.Items) - 1
		hidden := step.First != 0 && (last < 0 || step.Items[0].Sequence != step.First) // older than maxAgeMs
		if step.Ended && last < 0 && len(step.Gaps) == 0 && !hidden {
			return nil, &refusal.Error{Status: http.StatusOK, Code: codeNotFound, Message: messageClosed}
		}
		b = append(append(append(b, `{"jsonrpc":"2.0","id":`...), id...), `,"result":{"resultType":"complete","events":[`...)
		for i := range step.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendOccurrence(b, r, &step.Items[i]), '}')
		}
		b = delivery.AppendString(append(b, `],"cursor":`...), r.ID(r.Cursor))
		b = strconv.AppendBool(append(b, `,"truncated":`...), hidden || len(step.Gaps) > 0)
		// The events after those of a read of the log are in the window.
		more := step.More || last >= 0 && step.Items[last].Segment == window.OfLog
		b = strconv.AppendBool(append(b, `,"hasMore":`...), more)
		return append(strconv.AppendInt(append(b, `,"nextPollMs":`...), nextPollMS, 10), "}}"...), nil
	}
}

// appendOccurrence appends an event without the brace that ends it.
func appendOccurrence(b []byte, r *cursor.Reader, it *window.Item) []byte {
	_, message := window.FrameParts(it.Frame)
	b = delivery.AppendString(append(b, `{"eventId":`...), r.ID(it.Sequence))
	b = time.Unix(0, it.Time).UTC().AppendFormat(append(b, `,"name":"`+eventsName+`","timestamp":"`...), time.RFC3339Nano)
	return append(append(b, `","data":`...), message...)
}

// eventsForm is the format of events/stream: notifications about one subscription, which the ID of
// the request names, and the response at the end.
type eventsForm struct {
	*delivery.Connection
	delivery.NoCompanion
	service *Service
	id      json.RawMessage
}

func (f *eventsForm) Kind() string { return eventsStream + " " + string(f.id) }

func (f *eventsForm) Protocol() inspect.Protocol { return inspect.MCPCall }

// Opening confirms the subscription, unless Gaps does: it is truncated then.
func (f *eventsForm) Opening(_ context.Context, from delivery.Beginning) []byte {
	if len(f.Reader.Pending)+len(f.Step.Gaps) > 0 {
		return nil
	}
	return f.active(from.Position, len(f.Step.Items) > 0 && f.Filter.IsOld(&f.Step.Items[0]))
}

func (f *eventsForm) Gaps(s cursor.Step) []byte { return f.active(f.Reader.ResumesAt(s), true) }

func (f *eventsForm) active(position uint64, truncated bool) []byte {
	return f.notify("active", map[string]any{"cursor": f.Reader.ID(position), "truncated": truncated})
}

func (f *eventsForm) Rewrites() bool { return true }

func (f *eventsForm) Event(b, room []byte, it *window.Item) (_, _ []byte) {
	room = append(room[:0], `{"jsonrpc":"2.0","method":"notifications/events/event","params":`...)
	room = appendOccurrence(room, f.Reader, it)
	room = delivery.AppendString(append(room, `,"cursor":`...), f.Reader.ID(it.Sequence))
	room = append(append(append(room, `,"_meta":{"`+mcp.MetaSubscription+`":`...), f.id...), "}}}"...)
	return append(sse.AppendData(b, room), '\n'), room
}

// Heartbeat moves the client's cursor, but never over a gap that the client has not received yet.
func (f *eventsForm) Heartbeat() []byte {
	id := f.Reader.CursorID()
	if id == "" {
		return []byte(":\n\n")
	}
	return f.notify("heartbeat", map[string]any{"cursor": id})
}

// messageClosed is the error about a stream that has no more events and never will.
const messageClosed = "NotFound: The stream is closed."

func (f *eventsForm) Closing(cursor.Step) []byte {
	return append(f.terminated(codeNotFound, messageClosed), f.response()...)
}

// Farewell has the client subscribe again at its cursor, unless its access was revoked.
func (f *eventsForm) Farewell() []byte {
	if f.Revoked != nil && f.Revoked() {
		return append(f.terminated(codeForbidden, "Forbidden: The access was revoked."), f.response()...)
	}
	return append(sse.AppendRetry(nil, delivery.Jitter(f.Retry())), f.response()...)
}

func (f *eventsForm) terminated(code int, message string) []byte {
	return f.notify("terminated", map[string]any{"error": map[string]any{"code": code, "message": message}})
}

// notify returns the block of a notification.
func (f *eventsForm) notify(method string, params map[string]any) []byte {
	params["_meta"] = map[string]json.RawMessage{mcp.MetaSubscription: f.id}
	data := event.MustJSON(map[string]any{"jsonrpc": "2.0", "method": "notifications/events/" + method, "params": params})
	return append(sse.AppendData(nil, data), '\n')
}

// response returns the block of the response, which is empty.
func (f *eventsForm) response() []byte {
	return append(sse.AppendData(nil, response(f.id, json.RawMessage(`{"resultType":"complete","_meta":{}}`))), '\n')
}

func (f *eventsForm) Ended(bool) { f.service.metrics.connections.Dec() }

// servesEvents reports whether the edge itself answers a request.
func (s *Service) servesEvents(method string) bool {
	return s.cfg.Events && strings.HasPrefix(method, eventsPrefix)
}

// withEvents adds the capability to the response to server/discover.
func withEvents(data []byte) []byte {
	var m, result, capabilities map[string]json.RawMessage
	if rpc.Unmarshal(data, &m) != nil || rpc.Unmarshal(m["result"], &result) != nil || rpc.Unmarshal(result["capabilities"], &capabilities) != nil || capabilities == nil {
		return data
	}
	capabilities["events"] = json.RawMessage(`{}`)
	result["capabilities"] = event.MustJSON(capabilities)
	m["result"] = event.MustJSON(result)
	return event.MustJSON(m)
}

// edited returns the response to the request of a call as its client receives it.
func (m *streamForm) edited(response []byte) []byte {
	if m.discovers && m.service.cfg.Events {
		return withEvents(response)
	}
	return response
}
