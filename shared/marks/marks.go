// Package marks is the question that an edge asks the janitor's ledger, and its
// answer: up to which sequence has anything ever been removed from a stream?
//
// An edge needs it to prove that a cursor is complete when no event at or before
// the cursor is left in the log. The question is a NATS request on [Subject].
package marks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Subject is where complete ledgers answer, in the queue group [Queue].
const (
	Subject = "mcp.ledger.marks"
	Queue   = "janitor"
)

// ErrUnavailable is returned when no complete ledger answered.
var ErrUnavailable = errors.New("no janitor answers")

// Reason says why events were removed.
type Reason string

const (
	// Expired means that the events were older than the log's maximum age.
	Expired Reason = "expired"
	// Trimmed means that a limit on events or bytes was exceeded.
	Trimmed Reason = "trimmed"
	// Cleared means that somebody cleared the stream or session.
	Cleared Reason = "cleared"
)

// Mark is what the ledger knows of a stream's removed events. Markers do not count.
type Mark struct {
	// Removed is the last sequence of an event of the stream that was removed; 0 for none.
	Removed uint64 `json:"removed,omitempty"`
	// Reason says why it was.
	Reason Reason `json:"reason,omitempty"`
	// Maybe is the last sequence up to which events of the stream may have been
	// removed that the ledger never saw; 0 for none. After it the ledger is exact.
	Maybe uint64 `json:"maybe,omitempty"`
}

// StreamMark is the mark of one stream.
type StreamMark struct {
	Session string `json:"session"`
	Stream  string `json:"stream"`
	Mark
}

// Request asks for marks of one partition.
type Request struct {
	Partition int `json:"partition"`
	// Birth is the ID of the partition's first generation, as the edge knows it: a
	// ledger of another life of the partition does not answer with marks.
	Birth string `json:"birth"`
	// Generation is the ID of the newest generation that the edge has seen; empty
	// means that it does not say. A ledger that has not heard of it may be of a life
	// that was rolled back, and does not answer with marks.
	Generation string `json:"generation,omitempty"`
	// Session narrows the answer to a session; empty means the whole partition.
	Session string `json:"session,omitempty"`
	// Stream narrows it to a stream of the session; empty means all of them.
	Stream string `json:"stream,omitempty"`
	// Places asks for these streams alone, at most MaxPlaces of them, instead of Session
	// and Stream: what many readers wait for is one question.
	Places []Place `json:"places,omitempty"`
	// Through is a sequence that the ledger must have followed the log to before it answers.
	Through uint64 `json:"through,omitempty"`
	// First is the oldest retained sequence as the edge saw it: everything before
	// it is gone, whether or not the ledger has noticed.
	First uint64 `json:"first,omitempty"`
	// Limit is the partition's limit of events per stream as the edge saw it: a ledger
	// that does not know of a change yet does not answer. 0 means not said.
	Limit int64 `json:"limit,omitempty"`
	// From pages through a long answer: Reply.Next of the page before.
	From string `json:"from,omitempty"`
}

// Reply answers a Request.
type Reply struct {
	// Error is set, and nothing else, when the ledger cannot answer.
	Error string `json:"error,omitempty"`
	// Through is the sequence up to which the ledger has followed the log.
	Through uint64 `json:"through"`
	// Generation is the ID of the newest generation that the ledger has heard of. When
	// it is not the one that was asked with, the answer may be about events that the
	// edge's own view of the partition does not have.
	Generation string `json:"generation,omitempty"`
	// Default holds for every stream asked for that Marks does not name.
	Default Mark `json:"default"`
	// Marks are the streams whose mark differs from Default, ordered by session and stream token.
	Marks []StreamMark `json:"marks,omitempty"`
	// Places answers Request.Places, in the same order.
	Places []PlaceMark `json:"places,omitempty"`
	// Next is where the next page begins; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Place is one stream.
type Place struct {
	Session string `json:"session"`
	Stream  string `json:"stream"`
}

// PlaceMark is all that the ledger knows of one stream.
type PlaceMark struct {
	Mark
	// Closed is the sequence of the =close marker of the stream or of its session, the
	// first of them; 0 while the log has none.
	Closed uint64 `json:"closed,omitempty"`
	// First is the sequence of the oldest retained event; 0 when there is none.
	First uint64 `json:"first,omitempty"`
}

// PageSize is the most marks in one reply, which keeps a reply below NATS's
// default limit of 1 MiB with the longest names.
const PageSize = 1000

// MaxPlaces is the most places in one request, with the longest names in the same limit.
const MaxPlaces = 500

// Ask sends a request and collects all pages of the answer. The error wraps
// [ErrUnavailable].
func Ask(ctx context.Context, nc *nats.Conn, req Request) (Reply, error) {
	all := Reply{}
	for {
		data, err := json.Marshal(req)
		if err != nil {
			return Reply{}, err
		}
		msg, err := nc.RequestWithContext(ctx, Subject, data)
		if err != nil {
			return Reply{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		var reply Reply
		if err := json.Unmarshal(msg.Data, &reply); err != nil {
			return Reply{}, fmt.Errorf("%w: the answer cannot be read: %w", ErrUnavailable, err)
		}
		if reply.Error != "" {
			return Reply{}, fmt.Errorf("%w: %s", ErrUnavailable, reply.Error)
		}
		if len(reply.Places) != len(req.Places) {
			return Reply{}, fmt.Errorf("%w: %d places of %d are answered", ErrUnavailable, len(reply.Places), len(req.Places))
		}
		if req.From == "" {
			all = reply
		} else {
			all.Marks = append(all.Marks, reply.Marks...)
			all.Through = min(all.Through, reply.Through)
			all.Generation = reply.Generation // another one than before is not the one asked with either
			// A page leaves out the streams with its own default: the larger doubt is
			// right for those of all pages.
			all.Default.Maybe = max(all.Default.Maybe, reply.Default.Maybe)
			all.Next = reply.Next
		}
		if reply.Next == "" || reply.Next == req.From {
			return all, nil
		}
		req.From = reply.Next
	}
}

// AskTimeout is how long an edge waits for an answer before it says that it is not certain.
const AskTimeout = 2 * time.Second
