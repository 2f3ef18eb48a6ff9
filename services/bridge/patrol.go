package bridge

import (
	"context"
	"errors"
	"time"

	"rejoin/shared/session"
)

// patrolEvery is how often a bridge looks for sessions that were ended elsewhere.
const patrolEvery = time.Second

// patrol finishes the sessions that somebody else has ended. The copy of the registry
// only raises the suspicion.
func (s *Service) patrol() {
	ticker := time.NewTicker(patrolEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-ticker.C:
		}
		for _, h := range s.all() {
			rec, ok := s.backend.Sessions.Session(h.name)
			if !ok || h.has(rec) {
				continue
			}
			ctx, cancel := context.WithTimeout(s.life, s.cfg.AckTimeout)
			over, err := s.isOver(ctx, h)
			cancel()
			if err == nil && over {
				h.finish(errEnded)
			}
		}
	}
}

// has reports whether a record says that the session is open.
func (h *held) has(rec session.Record) bool {
	return rec.State == session.Open && rec.Life == h.life
}

// isOver asks the log whether a session has ended.
func (s *Service) isOver(ctx context.Context, h *held) (bool, error) {
	rec, err := s.backend.Sessions.Get(ctx, h.name)
	if errors.Is(err, session.ErrNotFound) {
		return true, nil
	}
	return err == nil && !h.has(rec), err
}
