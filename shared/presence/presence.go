// Package presence is the question that the janitor asks all edges before it closes
// idle sessions, and their answer: is anybody there, or was somebody a while ago?
package presence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Subject is where every edge and every bridge listens, in no queue group.
const Subject = "mcp.edge.present"

// MaxSessions is the most sessions in one question, which with the longest names
// keeps it below NATS's default limit of 1 MiB.
const MaxSessions = 500

// ErrUnknown is returned when nobody can say which edges have answered.
var ErrUnknown = errors.New("it is not known who is connected")

// Question asks for sessions; with none it asks who there is.
type Question struct {
	Sessions []Session `json:"sessions,omitempty"`
}

// Session is one that the question is about.
type Session struct {
	Name string `json:"name"`
	// Within is how far back a request counts, in seconds.
	Within int64 `json:"within"`
}

// Answer is that of one edge, or of a bridge, whose open calls are connections.
type Answer struct {
	// Edge is the edge's own, for as long as it runs.
	Edge string `json:"edge"`
	// Present are the sessions that the edge has connections for, or may have had a
	// request for within their time.
	Present []Present `json:"present,omitempty"`
}

// Present is a session with somebody.
type Present struct {
	// Session is its index in the question.
	Session int `json:"session"`
	// Ago is how long ago somebody was there, in seconds; 0 for now.
	Ago int64 `json:"ago,omitempty"`
}

// questionsBacklog is how many questions may wait; more are dropped by the client,
// and the janitor misses the edge's answer.
const questionsBacklog = 64

// Serve answers questions until ctx ends, one after the other.
func Serve(ctx context.Context, nc *nats.Conn, answer func(Question) Answer) error {
	questions := make(chan *nats.Msg, questionsBacklog)
	sub, err := nc.ChanSubscribe(Subject, questions)
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", Subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-questions:
			var q Question
			if json.Unmarshal(msg.Data, &q) != nil {
				continue // who asked hears of no answer
			}
			if data, err := json.Marshal(answer(q)); err == nil {
				_ = msg.Respond(data) // what does not arrive is no answer either
			}
		}
	}
}

// Ask asks all edges and returns the answers that come within a time. It returns none
// at once when NATS knows of no edge. The error wraps [ErrUnknown].
func Ask(ctx context.Context, nc *nats.Conn, q Question, within time.Duration) ([]Answer, error) {
	// Without HTML's escapes, which make six bytes of one.
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(q); err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	if err := nc.PublishRequest(Subject, sub.Subject, data.Bytes()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	wait, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var answers []Answer
	for {
		msg, err := sub.NextMsgWithContext(wait)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return nil, nil
		case err != nil && ctx.Err() == nil && wait.Err() != nil:
			return answers, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		var a Answer
		if err := json.Unmarshal(msg.Data, &a); err != nil || a.Edge == "" {
			return nil, fmt.Errorf("%w: an answer cannot be read", ErrUnknown)
		}
		for _, p := range a.Present {
			if p.Session < 0 || p.Session >= len(q.Sessions) || p.Ago < 0 {
				return nil, fmt.Errorf("%w: an answer is to another question", ErrUnknown)
			}
		}
		answers = append(answers, a)
	}
}
