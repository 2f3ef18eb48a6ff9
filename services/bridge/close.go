package bridge

import (
	"context"
	"errors"
	"net/http"
	"time"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// endNow ends the session because its client wants that, and waits for its end in the log.
func (h *clientSession) endNow(c rpc.Call) rpc.Answer {
	h.remember(c.Header)
	h.finish(errEnded)
	ctx, cancel := context.WithTimeout(h.service.life, h.service.cfg.CloseTimeout())
	defer cancel()
	select {
	case <-h.ended:
		return rpc.Answer{Status: http.StatusNoContent}
	case <-ctx.Done():
		return upstream.Busy("the session cannot be closed now")
	}
}

// check sees to it that a stream gets its response, or an error.
func (h *clientSession) check(c rpc.Call) rpc.Answer {
	accepted := rpc.Answer{Status: http.StatusAccepted}
	ids, _ := rpc.RequestIDs(c.Stream)
	if h.onDemand != nil {
		h.onDemand.wasAsked()
	}
	if h.call(c.Stream) != nil || len(ids) == 0 {
		return accepted
	}
	s := h.service
	ctx, cancel := context.WithTimeout(s.life, s.cfg.CloseTimeout())
	defer cancel()
	lost := newCall(h, c.Stream, ids)
	final, err := lost.hasFinal(ctx)
	if err != nil {
		return upstream.Busy("the log cannot be read now")
	}
	if final {
		return accepted
	}
	// The bridge may have taken the request meanwhile: it receives messages in their order, but
	// serves each in a goroutine.
	lost.told = true // its client waits for what is in the log
	if !h.addCall(lost) {
		return accepted
	}
	defer h.forget(lost, func() {})
	switch final, err := lost.reloadOnce(ctx); { // some of a batch may be answered
	case err != nil:
		return upstream.Busy("the log cannot be read now")
	case final:
		return accepted
	}
	lost.out.nonce = "check" // one event for the checks of two edges
	lost.fail(rpc.CodeInternal, "the request was lost", failUnknown)
	return accepted
}

// hasFinal reports whether the log has the last event of a call's stream, or its end.
func (c *call) hasFinal(ctx context.Context) (bool, error) {
	if ended, err := c.hasEnd(ctx); ended || err != nil {
		return ended, err
	}
	e, err := c.session.service.backend.Log.Newest(ctx, c.subject())
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return e.Final, err
}

// hasEnd reports whether a call's stream was ended without a last event: its client has
// cancelled it.
func (c *call) hasEnd(ctx context.Context) (bool, error) {
	end := c.subject()
	end.Kind = event.End
	_, err := c.session.service.backend.Log.Last(ctx, end)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// subject is where the stream's events are in the log.
func (c *call) subject() event.Subject {
	h := c.session
	return event.Subject{Partition: h.service.backend.Log.Partition(h.name), Session: h.name, Life: h.life, Stream: c.stream}
}

// finish ends the session here, upstream, and in the log. It returns at once, and does
// nothing the second time. cause is errEnded, errGone or [upstream.ErrExited].
//
// A request counts as answered once its response is stored, so a bridge that stops in between
// leaves it to the next one.
func (h *clientSession) finish(cause error) {
	h.mu.Lock()
	first := !h.ending
	h.ending = true
	h.mu.Unlock()
	if !first {
		return
	}
	if errors.Is(cause, errEnded) {
		close(h.over)
	}
	h.end(cause)
	h.service.run(func() {
		h.work.Wait() // calls that the upstream has lost end with an error
		if errors.Is(cause, errEnded) {
			// Some servers answer when their tools have ended; that is not waited for.
			h.service.run(func() { h.up.close(h.service.life, h.header()) })
		}
		if h.inLog() {
			h.service.close(h)
		} else {
			close(h.ended)
		}
		h.service.release(h)
	})
}

// closesAtOnce is how many sessions are ended in the log at a time. An overloaded log ends none of
// them in time when all are tried at once, and has no time left for calls.
const closesAtOnce = 32

// close ends a session in the log, however long that takes.
func (s *Service) close(h *clientSession) {
	_ = retry(s.life, func() error { // what the service does not, the next bridge does
		select {
		case s.closing <- struct{}{}:
			defer func() { <-s.closing }()
		case <-s.life.Done():
			return s.life.Err()
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.CloseTimeout())
		defer cancel()
		err := s.closeOnce(ctx, h)
		if err != nil {
			s.log.Info("a session is not ended yet", "session", h.name, "error", err)
		}
		return err
	})
}

// closeOnce is one attempt to end a session in the log, also where somebody else has begun
// to. A session of the same name that was opened since is another one.
func (s *Service) closeOnce(ctx context.Context, h *clientSession) error {
	rec, err := s.backend.Sessions.Get(ctx, h.name)
	if err == nil && rec.Life == h.life {
		err = s.backend.Sessions.End(ctx, h.name, "", false)
	}
	if err == nil || errors.Is(err, session.ErrNotFound) {
		close(h.ended)
		return nil
	}
	return err
}

// patrolEvery is how often a bridge looks for sessions that were ended elsewhere.
const patrolEvery = time.Second

// reconcile finishes the sessions that somebody else has ended, and the calls that no client waits
// for. The copy of the registry only raises the suspicion.
func (s *Service) reconcile() {
	ticker := time.NewTicker(patrolEvery)
	defer ticker.Stop()
	var edges hearing
	for {
		select {
		case <-s.life.Done():
			return
		case <-ticker.C:
		}
		edges.look(time.Now(), s.backend.Conn.IsConnected())
		s.closeSpares(false)
		s.patrol(edges.deaf)
	}
}

// pausedAfter is the time between two looks that shows a pause of the process (SIGSTOP, a frozen
// container): longer than a look takes, and short enough that a shorter pause and the 10 s between two
// questions of an edge are less than [orphanedAfter].
const pausedAfter = 15 * time.Second

// hearing is when edges could not be heard: while NATS was away, and while the process was paused.
type hearing struct {
	looked time.Time // the last look
	deaf   time.Time // when they could not be heard last; zero for never
}

// look notes whether the edges can be heard now, and could be since the last look.
func (g *hearing) look(now time.Time, connected bool) {
	if !connected || !g.looked.IsZero() && now.Sub(g.looked) > pausedAfter {
		g.deaf = now
	}
	g.looked = now
}

// patrol is one look at all sessions. It does not wait for a call that is storing something.
func (s *Service) patrol(away time.Time) {
	for _, h := range s.all() {
		if h.onDemand == nil {
			s.lookAt(h, away)
		} else if h.looking.CompareAndSwap(false, true) {
			h.run(func() {
				defer h.looking.Store(false)
				s.lookAt(h, away)
			})
		}
	}
}

func (s *Service) lookAt(h *clientSession, away time.Time) {
	if h.isOrphaned(time.Now(), away) {
		s.log.Info("a call is cancelled: no edge waits for its response", "session", h.name)
		h.finish(errEnded)
		return
	}
	if work := h.task(); work != nil {
		work.refreshTask(time.Now())
	}
	rec, ok := s.backend.Sessions.Session(h.name)
	if !ok || h.has(rec) {
		return
	}
	ctx, cancel := context.WithTimeout(s.life, s.cfg.AckTimeout)
	over, err := s.isOver(ctx, h)
	cancel()
	if err == nil && over {
		h.finish(errEnded)
	}
}

// has reports whether a record says that the session is open.
func (h *clientSession) has(rec session.Record) bool {
	return rec.State == session.Open && rec.Life == h.life
}

// isOver asks the log whether a session has ended.
func (s *Service) isOver(ctx context.Context, h *clientSession) (bool, error) {
	rec, err := s.backend.Sessions.Get(ctx, h.name)
	if errors.Is(err, session.ErrNotFound) {
		return true, nil
	}
	return err == nil && !h.has(rec), err
}
