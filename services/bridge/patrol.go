package bridge

import (
	"time"

	"rejoin/shared/session"
)

// patrolEvery is how often a bridge looks for sessions that were closed elsewhere.
const patrolEvery = time.Second

// patrol ends the sessions that somebody else has closed.
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
			if rec, ok := s.backend.Sessions.Session(h.name); ok && rec.State != session.Open {
				h.finish(errEnded)
			}
		}
	}
}
