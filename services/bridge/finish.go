package bridge

import (
	"context"
	"errors"

	"rejoin/shared/session"
)

// finish ends the session here, upstream, and in the log. It returns at once, and does
// nothing the second time. cause is errEnded, errGone or errExited.
//
// A request counts as answered once its response is stored, so a bridge that stops in between
// leaves it to the next one.
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
			// Some servers answer when their tools have ended; that is not waited for.
			h.service.run(func() { h.up.close(h.service.life, h.header()) })
		}
		h.service.close(h)
		h.service.release(h)
	})
}

// close ends a session in the log, however long that takes.
func (s *Service) close(h *held) {
	_ = keepTrying(s.life, func() error { // what the service does not, the next bridge does
		err := s.closeOnce(h)
		if err != nil {
			s.log.Info("a session is not ended yet", "session", h.name, "error", err)
		}
		return err
	})
}

// closeOnce is one attempt to end a session in the log, also where somebody else has begun
// to. A session of the same name that was opened since is another one.
func (s *Service) closeOnce(h *held) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.closeTimeout())
	defer cancel()
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
