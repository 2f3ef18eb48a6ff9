package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/retry"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/presence"
	"rejoin/shared/rpc"
)

// receive answers edges until ctx ends.
func (s *Service) receive(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case msg := <-s.inbox:
			s.accept(msg)
		}
	}
}

// accept answers a request of an edge, in a goroutine of its own.
func (s *Service) accept(msg *nats.Msg) {
	if msg.Subject == host.ChangedSubject {
		s.host.HearChange(string(msg.Data))
		return
	}
	begun, reconnects := time.Now(), s.host.Backend.Conn.Stats().Reconnects
	c, err := rpc.ParseAsk(msg)
	respond := func(a rpc.Answer, send func(rpc.Answer, *nats.Msg) error) {
		s.host.Metrics.Answered(c.Action, a.Status)
		s.host.Metrics.AcceptSeconds.Observe(time.Since(begun).Seconds())
		if a.Status >= http.StatusBadRequest {
			ids, _ := rpc.RequestIDs(c.Stream)
			a = upstream.About(a, ids)
		}
		if err := send(a, msg); err != nil {
			s.host.Logger.Info("an edge is not answered", "session", c.Session, "stream", c.Stream, "error", err)
		}
	}
	if err != nil {
		respond(upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, err.Error()), rpc.Answer.Respond)
		return
	}
	client, h, arrived := s.shareOf(c), s.table.Session(c.Session), func() {}
	if h != nil && h.OneCall && c.Action == rpc.Check {
		h.WasAsked(c.Since) // also if there is no room for an answer
	}
	if !s.handling.Take(client, 1) {
		respond(upstream.Busy("the bridge has too much to do, or too much for this client"), rpc.Answer.Respond)
		return
	}
	if h != nil && c.Action == rpc.Post {
		arrived = h.Arrives(c.Stream)
	}
	if !s.host.Go(func() {
		defer arrived()
		defer s.handling.Give(client, 1)
		ctx, span := s.host.BeginAnswer(&c)
		defer span.End()
		a := upstream.NotTaken(upstream.ErrPaused)
		if s.host.HasName() {
			a = s.answer(c)
		}
		s.host.Logger.DebugContext(ctx, "an edge asks", "session", c.Session, "stream", c.Stream, "action", string(c.Action), "bytes", len(c.Data), "status", a.Status)
		respond(a, func(a rpc.Answer, msg *nats.Msg) error { return s.respond(client, a, msg, reconnects) })
	}) {
		arrived()
		s.handling.Give(client, 1)
		respond(upstream.NotTaken(upstream.ErrStopping), rpc.Answer.Respond)
	}
}

const (
	// respondFor is the longest that an edge waits for an answer.
	respondFor = 35 * time.Second
	// respondAgain is the pause before an answer is sent again after an outage.
	respondAgain = time.Second
)

// respond answers an edge, in an outage of NATS as soon as that is over. reconnects is how often the bridge had
// reconnected when the request arrived. If it has reconnected since, the edge may do so later: it gets the answer twice,
// and takes the first. A waiting answer counts for the client; without memory for it, the answer is sent once.
func (s *Service) respond(client string, a rpc.Answer, msg *nats.Msg, reconnects uint64) error {
	err := a.Respond(msg)
	if errors.Is(err, nats.ErrMaxPayload) {
		a = upstream.Failure(http.StatusBadGateway, rpc.CodeInternal, "the answer is larger than NATS takes")
		err = a.Respond(msg)
	}
	outage, again := errors.Is(err, nats.ErrReconnectBufExceeded), func() bool { return s.host.Backend.Conn.Stats().Reconnects != reconnects }
	n := int64(len(a.Data))
	if err == nil && !again() || err != nil && !outage || !s.host.Memory.Take(client, n) {
		return err
	}
	defer s.host.Memory.Give(client, n)
	ctx, cancel := context.WithTimeout(s.host.Life, respondFor)
	defer cancel()
	if outage {
		err = retry.Do(ctx, func() error { return a.Respond(msg) })
	}
	if err == nil && again() && s.host.Pause(ctx, respondAgain) {
		err = a.Respond(msg)
	}
	return err
}

// answer carries out the request of an edge.
func (s *Service) answer(c rpc.Ask) rpc.Answer {
	switch {
	case c.Action == rpc.Open:
		return s.openSession(c)
	case c.Action == rpc.Request && !c.Held:
		return s.stateless.Request(c)
	}
	h := s.table.Session(c.Session)
	if h == nil {
		return host.Ended()
	}
	switch c.Action {
	case rpc.Request:
		return s.stateless.Again(h, c)
	case rpc.Cancel:
		return h.Cancel(c)
	case rpc.Post:
		if h.OneCall { // its client has no session, and answers with Request
			return host.Ended()
		}
		return h.Post(c)
	case rpc.End:
		return h.EndNow(c)
	case rpc.Check:
		return h.Check(c)
	default:
		return upstream.Failure(http.StatusBadRequest, rpc.CodeInvalid, "the bridge does not know what to do")
	}
}

// serveOpenCalls tells the janitor that sessions with open calls are not idle.
func (s *Service) serveOpenCalls() {
	id := "bridge-" + rand.Text()
	err := presence.Serve(s.host.Life, s.host.Backend.Conn, func(q presence.Question) presence.Answer {
		a := presence.Answer{Edge: id}
		for i, asked := range q.Sessions {
			if h := s.table.Session(asked.Name); h != nil && h.Busy() {
				a.Present = append(a.Present, presence.Present{Session: i})
			}
		}
		return a
	})
	if err != nil {
		s.host.Logger.Warn("the janitor does not hear of open calls", "error", err)
	}
}

// shareOf returns the client whose share a request of an edge takes: that of its session, or of the session that it
// begins. A request that ends something, or asks about it, is in no share: it frees the client's resources, or keeps a
// call from being taken for abandoned.
func (s *Service) shareOf(c rpc.Ask) string {
	if c.Action == rpc.Check || c.Action == rpc.Cancel || c.Action == rpc.End {
		return ""
	}
	if h := s.table.Session(c.Session); h != nil {
		return h.Share
	}
	return host.ClientOf(c)
}
