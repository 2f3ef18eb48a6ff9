// Package inspect is the question that the janitor asks all edges for people who watch
// over an installation, and their answer: who is connected, what was sent to them, and
// what happened to them.
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

// Subject is where every edge listens, in no queue group.
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

// ErrInvalid is returned for what is not a question.
var ErrInvalid = errors.New("not a question about the audience")

// About is what a question is about.
type About string

const (
	// Clients asks how many clients each of Question.Sessions has.
	Clients About = "clients"
	// Connections asks for the event streams of Question.Session, the newest first.
	Connections About = "connections"
	// Happenings asks what happened to the clients of Question.Session, the newest first.
	Happenings About = "happenings"
	// Gaps asks for the gaps that were told within [Kept], the newest first.
	Gaps About = "gaps"
)

// Question is what the edges are asked.
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

// Answer is that of one edge.
type Answer struct {
	// Edge is the edge's own, for as long as it runs; Host is the name of its machine.
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
	// Since is from when on the edge remembers all happenings, or all gaps: when it began,
	// or later when it had to forget some.
	Since time.Time `json:"since,omitzero"`
}

// Protocol is what a connection speaks.
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

// The ways to come.
const (
	FromStart  Came = "start"  // without a cursor: all that is retained
	FromNow    Came = "now"    // without a cursor: what comes next
	FromWindow Came = "window" // with a cursor in the edge's memory
	FromLog    Came = "log"    // with a cursor that only the log reaches
)

// State is what a connection does.
type State string

// The states.
const (
	Live    State = "live"
	Reading State = "reading" // what follows its cursor is read from the log
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

// Happening is something that happened to a client.
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
	// Reason is why there is a gap, or why the connection ended.
	Reason string `json:"reason,omitempty"`
	// Certain says of a gap whether something is missing for certain.
	Certain *bool `json:"certain,omitempty"`
	// Requested is, of a gap, the event ID as the client sent it, or the end of a longer one:
	// at most [MaxRequested] bytes.
	Requested string `json:"requested,omitempty"`
	// Cursor is the sequence up to which the client has everything then.
	Cursor uint64 `json:"cursor,omitempty"`
	// Events is how many the connection was sent until it ended.
	Events uint64 `json:"events,omitempty"`
}

// Serve answers questions until ctx ends, one after the other.
func Serve(ctx context.Context, nc *nats.Conn, answer func(Question) Answer) error {
	return scatter.Serve(ctx, nc, Subject, Parse, answer)
}

// Ask asks all edges and returns the answers that come within a time, or until as many
// edges as are known of have answered, and a moment longer. It returns none at once when
// NATS knows of no edge. An answer that makes no sense is none; when there are no others, the
// error wraps [scatter.ErrUnknown], as all errors do.
func Ask(ctx context.Context, nc *nats.Conn, q Question, known int, within time.Duration) ([]Answer, error) {
	answers, err := scatter.Ask(ctx, nc, Subject, q, q.from, known, within)
	if len(answers) > 0 {
		return answers, nil
	}
	return nil, err
}

// from returns whose an answer to the question is.
func (q Question) from(a Answer) (edge string) {
	if len(a.Of) != len(q.Sessions) || len(a.Connections) > MaxItems || len(a.Happenings) > MaxItems {
		return ""
	}
	return a.Edge
}
