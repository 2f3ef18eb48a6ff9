package bridge

import (
	"context"
	"errors"
	"time"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/sessions"
	"rejoin/shared/session"
)

// patrolEvery is how often a bridge looks for sessions that were ended elsewhere.
const patrolEvery = time.Second

// reconcile finishes the sessions that somebody else has ended, and the calls that no client waits
// for. The copy of the registry only raises the suspicion.
func (s *Service) reconcile() {
	ticker := time.NewTicker(patrolEvery)
	defer ticker.Stop()
	var edges deafness
	for {
		select {
		case <-s.host.Life.Done():
			return
		case <-ticker.C:
		}
		edges.look(time.Now(), s.host.Backend.Conn.IsConnected())
		s.server.CloseSpares(time.Now(), false)
		s.patrol(edges.last)
	}
}

// pausedAfter is the time between two looks that shows a pause of the process (SIGSTOP, a frozen
// container): longer than a look takes, and short enough that a shorter pause and the 10 s between two
// questions of an edge are less than [sessions.OrphanedAfter].
const pausedAfter = 15 * time.Second

// deafness notes when edges could not be heard: while NATS was away, and while the process was paused.
type deafness struct {
	looked time.Time // the last look
	last   time.Time // zero for never
}

// look notes whether the edges can be heard now, and could be since the last look.
func (g *deafness) look(now time.Time, connected bool) {
	if !connected || !g.looked.IsZero() && now.Sub(g.looked) > pausedAfter {
		g.last = now
	}
	g.looked = now
}

// patrol is one look at all sessions. It does not wait for a call that is storing something.
func (s *Service) patrol(deaf time.Time) {
	for _, h := range s.table.All() {
		h.Look(func() { s.lookAt(h, deaf) })
	}
}

func (s *Service) lookAt(h *sessions.Session, deaf time.Time) {
	if h.IsOrphaned(time.Now(), deaf) {
		s.host.Log.Debug("a call is cancelled: no edge waits for its response", "session", h.Name)
		h.Finish(host.ErrEnded)
		return
	}
	h.RefreshTask(time.Now())
	rec, ok := s.host.Backend.Sessions.Session(h.Name)
	if !ok || h.Has(rec) {
		return
	}
	ctx, cancel := context.WithTimeout(s.host.Life, s.host.Config.AckTimeout)
	over, err := s.isOver(ctx, h)
	cancel()
	if err == nil && over {
		h.Finish(host.ErrEnded)
	}
}

// isOver asks the log whether a session has ended.
func (s *Service) isOver(ctx context.Context, h *sessions.Session) (bool, error) {
	rec, err := s.host.Backend.Sessions.Get(ctx, h.Name)
	if errors.Is(err, session.ErrNotFound) {
		return true, nil
	}
	return err == nil && !h.Has(rec), err
}
