package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/sse"
)

// Subscriber reads the events of a stream or of a session, over as many
// connections as it takes. It has no goroutine of its own: a connection is read
// while its loop waits for the next event, and a slow loop slows its server down.
type Subscriber struct {
	cfg      SubscriberConfig
	endpoint endpoint
	running  atomic.Bool

	mu sync.Mutex
	at position // after the event yielded last; the loop alone writes it, and reads it without mu
}

// NewSubscriber returns a subscriber that has not connected yet. The error wraps
// [ErrInvalidConfig].
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Subscriber{cfg: cfg, endpoint: newEndpoint(cfg.URL, cfg.Token, cfg.HTTPClient, 1)}
	if cfg.After != "" {
		s.at = positionOf(cfg.After, cfg.Stream)
	}
	return s, nil
}

// Cursor returns the cursor after the event that was yielded last, or the one at which the
// subscription begins when no event was yielded; it is empty when neither is known. It
// also moves when the server reports a cursor while no events arrive. It never
// covers events that were read and not yielded.
//
// A program that saves its cursor does so at the end of the loop's body, when it
// has done its work: there, Cursor is [Event.Cursor]. Cursor is safe for concurrent
// use, but another goroutine does not know whether the body has ended.
func (s *Subscriber) Cursor() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at.text
}

// Events returns the events after [Subscriber.Cursor], each once and in
// order. The loop ends without an error when the stream or the session is closed
// and all events were yielded, and otherwise with one error, beside a zero Event:
//
//   - the cause of ctx's end;
//   - an [*Error] when the server refuses for good: every 4xx but 408, 425 and 429;
//   - [ErrProtocol] when a 200 without a cursor is no event stream or a compressed one, or an event is not one of a
//     Rejoin server or is larger than MaxEventBytes;
//   - [ErrBusy] when another loop over the subscriber continues.
//
// Everything else, network errors, 5xx and a proxy's page among them, is retried until
// ctx ends. A loop that was left can be begun again, and continues after the event
// at which it was left.
//
// When a connection ends between two gaps, the next one reports both: a gap may be
// yielded twice, but is never left out.
func (s *Subscriber) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if !s.running.CompareAndSwap(false, true) {
			yield(Event{}, ErrBusy)
			return
		}
		defer s.running.Store(false)
		defer s.endpoint.rest()
		if err := s.run(ctx, func(e Event) bool { return yield(e, nil) }); err != nil {
			yield(Event{}, err)
		}
	}
}

// run connects until the subscription is over.
func (s *Subscriber) run(ctx context.Context, yield func(Event) bool) error {
	wait := backoff{first: s.cfg.Retry, most: s.cfg.MaxRetry}
	for {
		err := s.visit(ctx, &wait, yield)
		refused, isRefusal := errors.AsType[*Error](err)
		switch {
		case errors.Is(err, errDone):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNoToken): // any error of the token function
		case errors.Is(err, ErrProtocol), isRefusal && !passing(refused.Status):
			return err
		}
		if s.cfg.OnFailure != nil && !errors.Is(err, errEnded) {
			s.cfg.OnFailure(err)
		}
		var least time.Duration
		if isRefusal {
			least = refused.RetryAfter
		}
		pause := wait.next(least)
		s.cfg.Logger.Info("reconnecting", "session", s.cfg.Session, "stream", s.cfg.Stream,
			"cursor", s.Cursor(), "wait", pause, "reason", err)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// minRetry is the least pause that a server can set.
const minRetry = 100 * time.Millisecond

// visit yields the events of one connection. It returns errDone when the
// subscription is over, and otherwise the reason why the connection has ended.
func (s *Subscriber) visit(ctx context.Context, wait *backoff, yield func(Event) bool) error {
	conn, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer conn.close()
	for begun := false; ; {
		block, err := conn.next()
		if asked := conn.blocks.Retry(); asked > 0 { // the server knows how long its trouble lasts
			wait.first = max(asked, minRetry)
			wait.reset()
		}
		if err != nil {
			s.move(s.place(conn.blocks.LastID())) // of a block without data, which is not dispatched
			if !begun && errors.Is(err, errEnded) {
				return errUnavailable
			}
			return err
		}
		begun = begun || block.Type == typeConnect
		wait.reset()
		if err = s.take(block, yield); err == nil {
			continue
		}
		if begun && errors.Is(err, ErrProtocol) && !event.ValidJSON(block.Data) {
			return fmt.Errorf("%w: %s", errBroken, err.Error()) // the next connection brings it whole
		}
		return err
	}
}

// take yields the event of a block.
func (s *Subscriber) take(block sse.Event, yield func(Event) bool) error {
	place := s.place(block.ID)
	switch {
	case block.Type == typeGap:
		return s.takeGap(block, place, yield)
	case block.Type == typeClose:
		s.move(place)
		return errDone
	case block.Type == typeCursor && s.cfg.Cursors && block.HasID && !s.at.covers(place):
		s.move(place)
		return more(yield(Event{Kind: KindCursor, Cursor: s.Cursor()}))
	// No JSON value is empty: a proxy repeats the cursor while no edge is available.
	case event.IsReserved(block.Type), block.Type == event.DefaultType && len(block.Data) == 0:
		if block.Type == typeConnect && s.cfg.OnConnect != nil {
			var is Connection
			_ = json.Unmarshal(block.Data, &is) // it exists and resumes as far as is known
			s.cfg.OnConnect(is)
		}
		s.move(place)
		return nil
	case block.HasID && s.at.covers(place):
		return nil
	default:
		return s.takeMessage(block, place, yield)
	}
}

func (s *Subscriber) takeMessage(block sse.Event, place position, yield func(Event) bool) error {
	e := Event{ID: block.ID, Stream: s.cfg.Stream, Type: block.Type, Message: block.Data}
	var err error
	switch {
	case s.envelope():
		e, err = enveloped(block)
	case !event.ValidJSON(block.Data):
		err = fmt.Errorf("%w: an event is no JSON", ErrProtocol)
	}
	if err != nil {
		return err
	}
	s.move(place)
	e.Cursor = s.Cursor()
	return more(yield(e))
}

// takeGap moves to the gap's cursor, forwards or backwards: after a roll-back the log
// gives the same sequences to other events. A gap without an ID is followed by
// another one that has it.
func (s *Subscriber) takeGap(block sse.Event, place position, yield func(Event) bool) error {
	gap, err := gapOf(block)
	if err != nil {
		return err
	}
	if block.HasID && place.text != "" {
		s.set(place)
	}
	return more(yield(Event{Kind: KindGap, Cursor: s.Cursor(), Gap: gap}))
}

// more returns errDone when a loop wants no more events.
func more(yes bool) error {
	if !yes {
		return errDone
	}
	return nil
}

// envelope reports whether messages arrive in envelopes: objects that also have their ID, stream, type and time.
func (s *Subscriber) envelope() bool { return s.cfg.Stream == "" || s.cfg.Times }

func (s *Subscriber) place(id string) position { return positionOf(id, s.cfg.Stream) }

// move sets the position, unless that is earlier than the present one.
func (s *Subscriber) move(place position) { s.set(s.at.after(place)) }

func (s *Subscriber) set(place position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = place
}
