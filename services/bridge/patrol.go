package bridge

import (
	"context"
	"errors"
	"time"

	"rejoin/services/bridge/host"
	"rejoin/services/bridge/sessions"
	"rejoin/shared/session"
)

// silentFor is how long NATS may take to answer before edges count as not heard.
const silentFor = 5 * time.Second

// reconcile finishes the sessions that were ended elsewhere, and the calls that no client waits
// for. The copy of the registry only raises the suspicion.
func (s *Service) reconcile() {
	ticker := time.NewTicker(sessions.LookEvery)
	defer ticker.Stop()
	connection := func() uint64 {
		ctx, cancel := context.WithTimeout(s.host.Life, silentFor)
		defer cancel()
		return s.connection(ctx)
	}
	edges := hearing{s.host.Pauses.Seen(), connection()}
	outage := s.host.Pauses.Outage()
	for {
		select {
		case <-s.host.Life.Done():
			return
		case <-ticker.C:
		}
		s.server.CloseExpiredSpares(time.Now())
		heard := edges.look(s.host.Pauses.Seen(), connection())
		outage.Set(!heard)
		s.patrol(heard)
	}
}

// connection returns the number of the connection to NATS; 0 for none, and for one on which the log does not answer
// until ctx ends. A server that is frozen keeps its connections: nats.go takes up to 30 s to notice that. One that is
// cut off from its cluster keeps them, too, and answers, but reaches no leader of the log.
func (s *Service) connection(ctx context.Context) uint64 {
	conn := s.host.Backend.Conn
	number := conn.Stats().Reconnects + 1
	if !conn.IsConnected() {
		return 0
	}
	if _, err := s.host.Backend.Log.Look(ctx, 0); err != nil {
		return 0
	}
	return number
}

// hearing notes whether edges can be heard: not while NATS does not answer, nor while the process is paused. Their
// messages are lost while the bridge reconnects.
type hearing struct {
	pauses     int    // at the last look
	connection uint64 // likewise; 0 for none
}

// look reports whether the edges could be heard since the last look: there is a connection, it is the same one, and
// the number of pauses has not changed.
func (g *hearing) look(pauses int, connection uint64) (heard bool) {
	now := hearing{pauses, connection}
	heard = connection != 0 && now == *g
	*g = now
	return heard
}

// patrol is one look at all sessions; see [sessions.Session.CountLook]. It does not wait for a call that is storing
// something.
func (s *Service) patrol(heard bool) {
	for _, h := range s.table.All() {
		h.CountLook(heard)
		h.Look(func() { s.lookAt(h) })
	}
}

func (s *Service) lookAt(h *sessions.Session) {
	if h.IsOrphaned() {
		s.host.Logger.Debug("a call is cancelled: no edge waits for its response", "session", h.Name)
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
