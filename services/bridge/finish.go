package bridge

import (
	"context"
	"errors"
	"time"

	"rejoin/shared/session"
)

// finish ends the session here, upstream, and in the registry. It returns at once, and
// does nothing the second time. cause is errEnded, errGone
// or errExited.
func (h *held) finish(cause error) {
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
			// Some servers answer when their tools have ended; nobody waits for that.
			h.service.run(func() { h.up.close(h.service.life, h.header()) })
		}
		h.service.close(h)
		h.service.release(h)
	})
}

// close closes a session in the registry and in the log, however long that takes.
func (s *Service) close(h *held) {
	_ = keepTrying(s.life, func() error { // what the service does not, the next bridge does
		err := s.closeOnce(h)
		if err == nil || errors.Is(err, session.ErrNotFound) {
			return nil
		}
		s.log.Info("a session is not closed yet", "session", h.name, "error", err)
		return err
	})
}

func (s *Service) closeOnce(h *held) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.closeTimeout())
	defer cancel()
	rec, err := s.backend.Sessions.Get(ctx, h.name, "")
	if err != nil {
		return err
	}
	if rec.State == session.Open {
		rec.State, rec.Ended = session.Closing, time.Now().UTC()
		if _, err := s.backend.Sessions.Update(ctx, rec); err != nil {
			return err
		}
	}
	h.markClosing()
	return session.Close(ctx, s.backend.Sessions, s.backend.Log, h.name, "", false, s.cfg.settle())
}

func (h *held) markClosing() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closing:
	default:
		close(h.closing)
	}
}
