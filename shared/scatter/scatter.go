// Package scatter asks all listeners on a subject of NATS, which are in no queue group, and
// receives each answer. So a janitor asks all edges, and all janitors. Questions and answers are
// JSON.
package scatter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/natsconn"
)

// ErrUnknown is returned when the question was not sent, or when answers are lost, make no sense or are too many.
var ErrUnknown = errors.New("the connections are not known")

// backlog is how many questions may wait; the NATS client drops more, and their askers miss
// the answer.
const backlog = 64

// Serve answers the questions on a subject until ctx ends, one after the other. A message that
// parse refuses gets no answer, nor does a question whose reply is no inbox. The error is about
// a closed connection.
func Serve[Q, A any](ctx context.Context, nc *nats.Conn, subject string, parse func([]byte) (Q, error), answer func(Q) A) error {
	questions := make(chan *nats.Msg, backlog)
	sub, err := nc.ChanSubscribe(subject, questions)
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", subject, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-questions:
			q, err := parse(msg.Data)
			if err != nil || !inbox.Is(msg.Reply) {
				continue
			}
			if data, err := event.EncodeJSON(answer(q)); err == nil {
				_ = msg.Respond(data) // an error is like a lost answer
			}
		}
	}
}

const (
	// settle is how much longer unknown listeners may take than the known ones.
	settle = 50 * time.Millisecond
	// maxAnswers bounds the senders whose answers are read.
	maxAnswers = 10_000
)

// Ask asks a question and returns the answers that arrive within a time, or, when it is
// known how many may answer, until as many have, and a moment longer; 0 is unknown. It
// returns no answers at once when the subject has no listener. from returns the sender of an
// answer: an answer without a sender is invalid, and each sender counts once.
//
// Errors wrap [ErrUnknown]. An error about an answer that makes no sense, or about too
// many answers, is returned with the other answers.
func Ask[A any](ctx context.Context, nc *nats.Conn, subject string, question any, from func(A) string, known int, within time.Duration) (answers []A, err error) {
	return AskUntil(ctx, nc, subject, question, from, func(answers []A) bool { return len(answers) == known }, settle, within)
}

// AskUntil is like [Ask], and returns once the answers are enough and no further sender has answered for quiet.
func AskUntil[A any](ctx context.Context, nc *nats.Conn, subject string, question any, from func(A) string, enough func([]A) bool, quiet, within time.Duration) (answers []A, err error) {
	ctx, done := natsconn.While(ctx, nc) // answers are lost with the connection
	defer done()
	sub, err := ask(nc, subject, question)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be closed already
	wait, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var nonsense error
	over := time.AfterFunc(within, cancel)
	defer over.Stop()
	heard := map[string]bool{}
	for len(answers) < maxAnswers {
		msg, err := sub.NextMsgWithContext(wait)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return nil, nil
		case err != nil && ctx.Err() == nil && wait.Err() != nil:
			return answers, nonsense
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		var a A
		switch err := json.Unmarshal(msg.Data, &a); {
		case err != nil || from(a) == "":
			nonsense = fmt.Errorf("%w: an answer makes no sense", ErrUnknown)
		case !heard[from(a)]: // a reconnecting sender has two connections for a moment
			heard[from(a)] = true
			if answers = append(answers, a); !enough(answers) {
				continue
			}
			if quiet == 0 {
				return answers, nonsense
			}
			over.Reset(quiet)
		}
	}
	return answers, fmt.Errorf("%w: %d have answered, and perhaps others", ErrUnknown, maxAnswers)
}

// ask sends a question, and returns the subscription to the answers.
func ask(nc *nats.Conn, subject string, question any) (*nats.Subscription, error) {
	data, err := event.EncodeJSON(question)
	if err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return nil, err
	}
	if err := nc.PublishRequest(subject, sub.Subject, data); err != nil {
		_ = sub.Unsubscribe() // the connection may be closed already
		return nil, err
	}
	return sub, nil
}
