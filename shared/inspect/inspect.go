// Package inspect is the question that the janitor asks all edges for the operators of an
// installation, and their answer: the connected clients, the events that each received, and
// the happenings of each.
package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/scatter"
)

// Subject is the subject on which every edge listens, in no queue group.
const Subject = "mcp.edge.audience"

const (
	// MaxSessions is the most sessions in one question.
	MaxSessions = 1000
	// MaxItems is the most connections, happenings or gaps in one answer. With the longest
	// names, an answer stays below NATS's default limit of 1 MiB.
	MaxItems = 500
	// MaxRequested is the most bytes of an event ID in a gap.
	MaxRequested = 128
	// Kept is how far back gaps are kept.
	Kept = time.Hour
)

// ErrInvalid is returned for a message that is not a question.
var ErrInvalid = errors.New("not a question about the audience")

// About is the topic of a question.
type About string

const (
	// Clients asks how many clients each of Question.Sessions has.
	Clients About = "clients"
	// Connections asks for the event streams of Question.Session, the newest first.
	Connections About = "connections"
	// Happenings asks what happened to the clients of Question.Session, the newest first.
	Happenings About = "happenings"
	// Gaps asks for the gaps that were reported within [Kept], the newest first.
	Gaps About = "gaps"
)

// Question is the message to the edges.
type Question struct {
	About    About    `json:"about"`
	Session  string   `json:"session,omitempty"`
	Sessions []string `json:"sessions,omitempty"`
	// Limit is how many items are wanted at most, up to [MaxItems].
	Limit int `json:"limit,omitempty"`
}

// Parse reads a question. The error wraps [ErrInvalid].
func Parse(data []byte) (Question, error) {
	var q Question
	if err := json.Unmarshal(data, &q); err != nil {
		return Question{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch {
	case len(q.Sessions) > MaxSessions:
		return Question{}, fmt.Errorf("%w: %d sessions", ErrInvalid, len(q.Sessions))
	case q.Limit < 0 || q.Limit > MaxItems:
		return Question{}, fmt.Errorf("%w: limit %d", ErrInvalid, q.Limit)
	}
	switch q.About {
	case Clients, Connections, Happenings, Gaps:
		return q, nil
	default:
		return Question{}, fmt.Errorf("%w: about %q", ErrInvalid, q.About)
	}
}

// Answer is the answer of one edge.
type Answer struct {
	// Edge is the edge's own name, for as long as it runs; Host is the name of its machine.
	Edge string `json:"edge"`
	Host string `json:"host,omitempty"`
	// Clients are all event streams and polls of the edge, or, in the answer to a question
	// about one session, those of the session.
	Clients int `json:"clients"`
	// Of has, for each of Question.Sessions, how many clients it has.
	Of []int `json:"of,omitempty"`
	// Connections, Happenings and Gaps are the newest Question.Limit of Total.
	Total       int          `json:"total"`
	Connections []Connection `json:"connections,omitempty"`
	Happenings  []Happening  `json:"happenings,omitempty"`
	// Reasons counts all gaps within [Kept] by reason.
	Reasons map[string]int `json:"reasons,omitempty"`
	// Since is the time from which on the edge remembers all happenings, or all gaps: its start,
	// or later when it had to forget some.
	Since time.Time `json:"since,omitzero"`
}

// Protocol is the protocol of a connection.
type Protocol string

// The protocols.
const (
	SSE       Protocol = "sse"
	MCP       Protocol = "mcp"      // Streamable HTTP, GET
	MCPCall   Protocol = "mcp_call" // Streamable HTTP, the answer to a POST
	MCPLegacy Protocol = "mcp_sse"  // the transport of 2024-11-05
)

// Came is where a client began when it connected.
type Came string

// The values of Came.
const (
	FromStart  Came = "start"  // without a cursor: all retained events
	FromNow    Came = "now"    // without a cursor: the next events
	FromWindow Came = "window" // with a cursor in the edge's memory
	FromLog    Came = "log"    // with a cursor that only the log reaches
)

// State is the state of a connection.
type State string

// The states.
const (
	Live    State = "live"
	Reading State = "reading" // the edge reads the events after its cursor from the log
	Slow    State = "slow"    // its socket is full
	Quiet   State = "quiet"   // another connection of the MCP client gets the messages
)

// Connection is an event stream.
type Connection struct {
	// Number tells the connections of an edge apart.
	Number uint64 `json:"number"`
	// Stream is empty for all streams of the session.
	Stream   string   `json:"stream,omitempty"`
	Protocol Protocol `json:"protocol"`
	// Address is the client's, of IPv6 its /64 network.
	Address string    `json:"address,omitempty"`
	Since   time.Time `json:"since"`
	Came    Came      `json:"came"`
	State   State     `json:"state"`
	// Events is how many were written; Sent is when the last one was.
	Events uint64    `json:"events"`
	Sent   time.Time `json:"sent,omitzero"`
	// Cursor is the sequence up to which the client has everything.
	Cursor uint64 `json:"cursor"`
}

// What is a kind of happening.
type What string

// The kinds of happenings.
const (
	Connected What = "connect"
	Resumed   What = "resume"
	Gapped    What = "gap"
	Ended     What = "end"
)

// Happening is an occurrence at a client's connection or poll.
type Happening struct {
	Time time.Time `json:"time"`
	What What      `json:"what"`
	// Session is left out in answers about one session.
	Session string `json:"session,omitempty"`
	// Stream is empty for all streams of the session.
	Stream string `json:"stream,omitempty"`
	// Connection is the number of the connection; 0 for a poll.
	Connection uint64 `json:"connection,omitempty"`
	Address    string `json:"address,omitempty"`
	// Came is where the client began, of a connect or resume.
	Came Came `json:"came,omitempty"`
	// Reason is the reason of the gap, or of the connection's end.
	Reason string `json:"reason,omitempty"`
	// Certain says of a gap whether events are missing for certain.
	Certain *bool `json:"certain,omitempty"`
	// Requested is, of a gap, the event ID as the client sent it, or the end of a longer one:
	// at most [MaxRequested] bytes.
	Requested string `json:"requested,omitempty"`
	// Cursor is the sequence up to which the client has everything then.
	Cursor uint64 `json:"cursor,omitempty"`
	// Events is how many events the connection received until it ended.
	Events uint64 `json:"events,omitempty"`
}

// Serve answers questions until ctx ends, one after the other.
func Serve(ctx context.Context, nc *nats.Conn, answer func(Question) Answer) error {
	return scatter.Serve(ctx, nc, Subject, Parse, answer)
}

// Ask asks all edges and returns the answers that arrive within a time, or until as many edges
// as known have answered, and a moment longer. It returns no answers at once when no edge listens
// on NATS. An answer that makes no sense does not count; when there are no others, the error
// wraps [scatter.ErrUnknown], as all errors do.
func Ask(ctx context.Context, nc *nats.Conn, q Question, known int, within time.Duration) ([]Answer, error) {
	answers, err := scatter.Ask(ctx, nc, Subject, q, q.from, known, within)
	if len(answers) > 0 {
		return answers, nil
	}
	return nil, err
}

// from returns the edge of an answer to the question; empty for an invalid answer.
func (q Question) from(a Answer) (edge string) {
	if len(a.Of) != len(q.Sessions) || len(a.Connections) > MaxItems || len(a.Happenings) > MaxItems {
		return ""
	}
	return a.Edge
}
