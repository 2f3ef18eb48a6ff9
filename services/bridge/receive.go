package bridge

import (
	"context"
	"errors"
	"net/http"
	"time"

	"rejoin/services/bridge/upstream"

	"github.com/nats-io/nats.go"

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
	if c.Action == rpc.Open {
		return s.openSession(c)
	}
	h := s.held(c.Session)
	if h == nil {
		return ended()
	}
	switch c.Action {
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
