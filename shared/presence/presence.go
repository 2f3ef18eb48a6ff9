// Package presence is the question that the janitor asks all edges before it closes
// idle sessions, and their answer: is a client connected, or was one a while ago?
package presence

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/scatter"
)

// Subject is the subject on which every edge and every bridge listens, in no queue group.
const Subject = "mcp.edge.present"

// MaxSessions is the most sessions in one question, which with the longest names
// keeps it below NATS's default limit of 1 MiB.
const MaxSessions = 500

// Question asks for sessions; without sessions it asks which edges and bridges there are.
type Question struct {
	Sessions []Session `json:"sessions,omitempty"`
}

// Session is a session of the question.
type Session struct {
	Name string `json:"name"`
	// Within is how far back a request counts, in seconds.
	Within int64 `json:"within"`
}

// Answer is the answer of one edge, or of a bridge, whose open calls are connections.
type Answer struct {
	// Edge is the edge's own name, for as long as it runs.
	Edge string `json:"edge"`
	// Present are the sessions that the edge has connections for, or may have had a
	// request for within their time.
	Present []Present `json:"present,omitempty"`
}

// Present is a session with a client.
type Present struct {
	// Session is its index in the question.
	Session int `json:"session"`
	// Ago is how long ago a client was connected, in seconds; 0 for now.
	Ago int64 `json:"ago,omitempty"`
}

// Serve answers questions until ctx ends, one after the other.
func Serve(ctx context.Context, nc *nats.Conn, answer func(Question) Answer) error {
	return scatter.Serve(ctx, nc, Subject, parse, answer)
}

func parse(data []byte) (q Question, err error) {
	err = json.Unmarshal(data, &q)
	return q, err
}

// Ask asks all edges and returns the answers that arrive within a time. It returns no answers
// at once when no edge listens on NATS. The error wraps [scatter.ErrUnknown].
func Ask(ctx context.Context, nc *nats.Conn, q Question, within time.Duration) ([]Answer, error) {
	answers, err := scatter.Ask(ctx, nc, Subject, q, q.from, 0, within)
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// from returns the edge of an answer to the question; empty for an invalid answer.
func (q Question) from(a Answer) (edge string) {
	for _, p := range a.Present {
		if p.Session < 0 || p.Session >= len(q.Sessions) || p.Ago < 0 {
			return ""
		}
	}
	return a.Edge
}
