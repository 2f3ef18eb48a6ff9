package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/presence"
	"rejoin/shared/rpc"
)

// receive answers calls until ctx ends.
func (s *Service) receive(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-s.inbox:
			s.accept(msg)
		}
	}
}

// accept answers a call, in a goroutine of its own.
func (s *Service) accept(msg *nats.Msg) {
	begun := time.Now()
	c, err := rpc.ParseCall(msg)
	respond := func(a rpc.Answer) {
		s.metrics.answered(c.Action, a.Status)
		s.metrics.acceptSeconds.Observe(time.Since(begun).Seconds())
		err := a.Respond(msg)
		if errors.Is(err, nats.ErrMaxPayload) {
			err = upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, "the answer is larger than NATS takes").Respond(msg)
		}
		if err != nil {
			s.log.Info("an edge is not answered", "session", c.Session, "stream", c.Stream, "error", err)
		}
	}
	if err != nil {
		respond(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error()))
		return
	}
	select {
	case s.handling <- struct{}{}:
	default:
		respond(upstream.Busy("the bridge has too much to do"))
		return
	}
	if !s.run(func() {
		defer func() { <-s.handling }()
		ctx, span := s.begin(&c)
		defer span.End()
		a := s.answer(c)
		s.log.DebugContext(ctx, "a call of an edge", "session", c.Session, "stream", c.Stream, "action", string(c.Action), "bytes", len(c.Data), "status", a.Status)
		respond(a)
	}) {
		<-s.handling
		respond(upstream.Busy(upstream.ErrStopping.Error()))
	}
}

// answer does what an edge asks for.
func (s *Service) answer(c rpc.Call) rpc.Answer {
	switch {
	case c.Action == rpc.Open:
		return s.openSession(c)
	case c.Action == rpc.Request && !c.Held:
		return s.request(c)
	}
	h := s.session(c.Session)
	if h == nil {
		return ended()
	}
	switch c.Action {
	case rpc.Request:
		return h.again(c)
	case rpc.Cancel:
		return h.cancel(c)
	case rpc.Post:
		return h.post(c)
	case rpc.End:
		return h.endNow(c)
	case rpc.Check:
		return h.check(c)
	default:
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "the bridge does not know what to do")
	}
}

const (
	aliveWithin = time.Second // is how long another bridge of the name has to answer
	aliveEvery  = time.Second // between two questions
)

// aliveSubject is where a bridge of a name says that it is there.
func aliveSubject(name string) string { return "mcp.rpc.b." + event.Token(name) }

// claimName waits until no other bridge of this name answers, since two would do everything
// twice, and then answers that this one is there. Two that start at the same moment do not
// see each other.
func (s *Service) claimName(ctx context.Context) (*nats.Subscription, error) {
	subject := aliveSubject(s.name)
	for told := false; ; {
		within, cancel := context.WithTimeout(ctx, aliveWithin)
		_, err := s.backend.Conn.RequestWithContext(within, subject, nil)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			sub, err := s.backend.Conn.Subscribe(subject, func(msg *nats.Msg) {
				if inbox.Is(msg.Reply) {
					_ = msg.Respond(nil)
				}
			})
			if err != nil {
				return nil, fmt.Errorf("cannot listen on NATS: %w", err)
			}
			return sub, nil
		case err == nil && !told:
			told = true
			s.log.Warn("another bridge has the same --bridge-name; this one waits until that has ended", "name", s.name)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(aliveEvery):
		}
	}
}

// serveOpenCalls tells the janitor that sessions with open calls are not idle.
func (s *Service) serveOpenCalls() {
	id := "bridge-" + rand.Text()
	err := presence.Serve(s.life, s.backend.Conn, func(q presence.Question) presence.Answer {
		a := presence.Answer{Edge: id}
		for i, asked := range q.Sessions {
			if h := s.session(asked.Name); h != nil && h.busy() {
				a.Present = append(a.Present, presence.Present{Session: i})
			}
		}
		return a
	})
	if err != nil {
		s.log.Warn("the janitor does not hear of open calls", "error", err)
	}
}
