package ingest

import (
	"context"
	"errors"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// maxEndings bounds the endings that are remembered: some 4 MB.
const maxEndings = 1 << 14

// endings are the newest streams of which JetStream refused a message because they have
// ended. An answer whose status is written before the first message is stored says 200, and
// where it stopped; its repeat is to be refused with a status. It is safe for concurrent use.
type endings struct{ *lru.Cache[ending, struct{}] }

type ending struct{ session, life, stream string }

func newEndings() endings {
	cache, _ := lru.New[ending, struct{}](maxEndings) // fails only without a size
	return endings{cache}
}

// stillOpen returns an error that wraps [session.ErrClosed] when a stream is among the
// endings and the log says so too: it may have lost the end since.
func (s *Service) stillOpen(ctx context.Context, rec session.Record, m message) error {
	if !s.endings.Contains(ending{m.session, rec.Life, m.stream}) {
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
