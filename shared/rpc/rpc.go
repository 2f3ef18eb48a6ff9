// Package rpc is the protocol of edges and bridges on NATS: the requests of MCP clients,
// and the bridge's immediate answers; and how both read JSON-RPC. The log gets the answers
// of the MCP server.
package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/tracing"
)

const (
	// OpenSubject is the subject on which any bridge takes [Open], and each [Request] that is not Held.
	OpenSubject = "mcp.rpc.open"
	// Queue is the queue group of bridges.
	Queue = "bridge"
	// Standalone is the stream of a session that gets the unrequested messages of the MCP
	// server: those for the client's GET.
	Standalone = "standalone"
)

// Subject is the subject on which the bridge that holds a session takes everything else.
func Subject(session string) string { return "mcp.rpc.s." + event.Token(session) }

var (
	// ErrNobody is returned when no bridge listens: nothing was done.
	ErrNobody = errors.New("no bridge listens")
	// ErrUnknown is returned when the bridge did not answer in time or the connection
	// was lost: it may have carried out the action.
	ErrUnknown = errors.New("the bridge did not answer")
	// ErrAway is returned when there is no connection to NATS: nothing was done.
	ErrAway = errors.New("NATS is unavailable")
	// ErrTooLarge is returned for a request that is larger than NATS takes: nothing was done.
	ErrTooLarge = errors.New("the request to the bridge is too large")
	// ErrInvalid is returned for a message that is neither an ask nor an answer.
	ErrInvalid = errors.New("not a message between edge and bridge")
)

// Action is the kind of an ask.
type Action string

const (
	// Open makes a session: Ask.Data is the initialize request. The answer has its
	// response; status 200 means that the session exists, in the registry too, unless
	// the response is an error. With an Ask.Stream, that stream has the response as well.
	Open Action = "open"
	// Post carries the body of a client's POST. The answer is 202 as soon as the upstream
	// has taken it, or might take long to confirm that.
	Post Action = "post"
	// End ends the session, here and upstream. 204 when it has ended, also when it had
	// ended before.
	End Action = "end"
	// Check asks whether Ask.Stream will still get its response: 202. A bridge that
	// does not know the stream writes an error to it as the last event, and answers 202 too.
	Check Action = "check"
	// Request carries a request of a revision without sessions, for which Session, Life and
	// Stream are new names. The answer has the response, or the status of HTTP that belongs to it;
	// or it is 202: then session and stream are in the log, and the stream gets the messages. A
	// request that continues one that waits for its client has the session and the life of that
	// one, and Held.
	Request Action = "request"
	// Cancel reports that the connection of the client that waited for Ask.Stream has closed: 202. With
	// Ask.Resumable the client may reconnect: a [Check] reports that it has. When an edge has asked about a newer
	// connection already, the client is connected.
	Cancel Action = "cancel"
)

// Ask is a request of an edge to a bridge.
type Ask struct {
	Action  Action `json:"action"`
	Session string `json:"session"`
	// Stream gets the responses to the requests in Data, and the messages that belong to them;
	// empty when Data has no requests. See [NewStream].
	Stream string `json:"stream,omitempty"`
	// Life is the life of the session that a [Request] may open.
	Life string `json:"life,omitempty"`
	// Held says that the bridge that Session names holds a call that a [Request] continues.
	Held bool `json:"held,omitempty"`
	// Resumable says that the client of a [Cancel] may reconnect.
	Resumable bool `json:"resumable,omitempty"`
	// Since is when the client's connection began that [Check] or [Cancel] is about, by the clock of its edge;
	// zero when the edge does not report it.
	Since time.Time `json:"since,omitzero"`
	// Owner is the subject of the client's token; empty without access control.
	Owner string `json:"owner,omitempty"`
	// Client is the address that the client of [Open] or [Request] counts as; empty when it is not known.
	Client string `json:"client,omitempty"`
	// Header is the client's, without the fields of the connection and of the transport.
	// The bridge chooses the fields that it passes on.
	Header http.Header `json:"header,omitempty"`
	// Trace is the trace context that the bridge continues with; Header does not hold it.
	Trace tracing.Context `json:"-"`
	// Data is the body of the client's POST, unchanged.
	Data []byte `json:"-"`
}

// Answer is a bridge's immediate answer to an [Ask].
type Answer struct {
	// Status is an HTTP status: 200, 202 or 204 as for [Action]; 404 when the session
	// has ended, also upstream, or as the answer to a [Request]; else the reason why the
	// upstream, or the bridge, took nothing.
	Status int `json:"status"`
	// NotTaken says that this bridge did nothing, since it stops or may have been replaced: another one may listen
	// soon.
	NotTaken bool `json:"notTaken,omitempty"`
	// Header is the upstream's, of [AnswerHeaders] alone.
	Header http.Header `json:"header,omitempty"`
	// Data is a JSON-RPC response: to initialize, or an error. Empty means no response.
	Data []byte `json:"-"`
}

// AnswerHeaders are the fields of an upstream's answer that its client gets: those of HTTP
// for a client that needs a token, or is to try again later. MCP 2025-11-25, transports, has
// Content-Type and Mcp-Session-Id besides, which are the edge's own.
var AnswerHeaders = []string{"Www-Authenticate", "Retry-After"}

// header holds the ask or answer beside its data, as JSON.
const header = "Rejoin-Call"

// subject is the subject on which a bridge takes the ask.
func (a Ask) subject() string {
	if a.Action == Open || a.Action == Request && !a.Held {
		return OpenSubject
	}
	return Subject(a.Session)
}

// Do asks the bridge and waits for its answer until ctx ends. Errors wrap [ErrNobody],
// [ErrAway], [ErrTooLarge], [ErrInvalid] or [ErrUnknown]; the request is not repeated.
func (a Ask) Do(ctx context.Context, nc *nats.Conn) (Answer, error) {
	msg := encode(a.subject(), a, a.Data)
	a.Trace.Set(msg.Header.Set)
	reply, err := nc.RequestMsgWithContext(ctx, msg)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return Answer{}, fmt.Errorf("%w: %w", ErrNobody, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting):
		return Answer{}, fmt.Errorf("%w: %w", ErrAway, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return Answer{}, fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err != nil:
		return Answer{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return ParseAnswer(reply)
}

// ParseAnswer reads the answer of a bridge. It may be written to an HTTP connection as it is:
// the status is one of HTTP for a whole response, 200 to 599, and the header has no names but
// [AnswerHeaders] and no control characters; other fields are left out. The error wraps
// [ErrInvalid].
func ParseAnswer(msg *nats.Msg) (Answer, error) {
	var a Answer
	if err := decode(msg, &a); err != nil {
		return Answer{}, err
	}
	if a.Status < 200 || a.Status > 599 {
		return Answer{}, fmt.Errorf("%w: its status is %d", ErrInvalid, a.Status)
	}
	said := a.Header
	a.Header, a.Data = nil, msg.Data
	for _, name := range AnswerHeaders {
		values := slices.DeleteFunc(said[name], func(value string) bool { return strings.ContainsFunc(value, isControl) })
		if len(values) > 0 {
			if a.Header == nil {
				a.Header = http.Header{}
			}
			a.Header[name] = values
		}
	}
	return a, nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// ParseAsk reads a message that arrived on a bridge's subject. The error wraps [ErrInvalid].
func ParseAsk(msg *nats.Msg) (Ask, error) {
	var a Ask
	if !inbox.Is(msg.Reply) {
		return Ask{}, fmt.Errorf("%w: its reply %q is no inbox", ErrInvalid, msg.Reply)
	}
	if err := decode(msg, &a); err != nil {
		return Ask{}, err
	}
	if err := event.CheckSession(a.Session); err != nil {
		return Ask{}, fmt.Errorf("%w: session: %w", ErrInvalid, err)
	}
	if msg.Subject != a.subject() {
		return Ask{}, fmt.Errorf("%w: %s of session %s came on %s", ErrInvalid, a.Action, a.Session, msg.Subject)
	}
	if a.Stream != "" {
		if err := event.CheckStream(a.Stream); err != nil {
			return Ask{}, fmt.Errorf("%w: stream: %w", ErrInvalid, err)
		}
	}
	if err := event.CheckLife(a.Life); err != nil {
		return Ask{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	a.Trace, a.Data = tracing.Read(msg.Header.Values), msg.Data
	return a, nil
}

// Respond answers an ask. The error wraps [ErrInvalid] when its reply is no inbox;
// nothing is sent then.
func (a Answer) Respond(msg *nats.Msg) error {
	if !inbox.Is(msg.Reply) {
		return fmt.Errorf("%w: its reply %q is no inbox", ErrInvalid, msg.Reply)
	}
	return msg.RespondMsg(encode(msg.Reply, a, a.Data))
}

func encode(subject string, v any, data []byte) *nats.Msg {
	head, _ := json.Marshal(v) // an Ask or an Answer, which has nothing but texts and numbers
	msg := nats.NewMsg(subject)
	msg.Header.Set(header, string(head))
	msg.Data = data
	return msg
}

func decode(msg *nats.Msg, v any) error {
	if err := json.Unmarshal([]byte(msg.Header.Get(header)), v); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
