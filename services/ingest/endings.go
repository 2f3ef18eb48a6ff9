package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// maxEndings bounds the streams in either half of the endings that are remembered: some
// 4 MB in all.
const maxEndings = 1 << 14

// endings are streams of which JetStream refused a message because they have ended. An
// answer whose status is written before the first message is stored says 200, and where it
// stopped; its repeat is to be refused with a status. It is safe for concurrent use.
type endings struct {
	mu            sync.Mutex
	recent, older map[ending]struct{}
}

type ending struct{ session, life, stream string }

func (e *endings) add(session, life, stream string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.recent) >= maxEndings {
		e.recent, e.older = nil, e.recent
	}
	if e.recent == nil {
		e.recent = map[ending]struct{}{}
	}
	e.recent[ending{session, life, stream}] = struct{}{}
}

func (e *endings) has(session, life, stream string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := ending{session, life, stream}
	_, recent := e.recent[at]
	_, older := e.older[at]
	return recent || older
}

// stillOpen returns an error that wraps [session.ErrClosed] when a stream is among the
// endings and the log says so too: it may have lost the end since.
func (s *Service) stillOpen(ctx context.Context, rec session.Record, m message) error {
	if !s.endings.has(m.session, rec.Life, m.stream) {
		return nil
	}
	end := event.Subject{Partition: s.backend.Log.Partition(m.session), Session: m.session, Life: rec.Life, Stream: m.stream, Kind: event.End}
	switch _, err := s.backend.Log.Last(ctx, end); {
	case errors.Is(err, eventlog.ErrNotFound):
		return nil
	case err != nil:
		return err
	default:
		return m.mayBeRepeated(fmt.Errorf("%w: %w: stream %s", errStreamClosed, session.ErrClosed, m.stream))
	}
}
