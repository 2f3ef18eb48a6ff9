package mcpstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"rejoin/shared/natsconn"
	"rejoin/shared/session"
)

// breaks has the mender note in the log that a stream's newest Append has failed.
func (s *Store) breaks(st *stream) {
	s.mu.Lock()
	s.broken[st] = struct{}{}
	s.mu.Unlock()
	select {
	case s.poked <- struct{}{}:
	default: // the mender has not taken the previous token yet
	}
}

// mendEvery is the pause between two attempts to store notes.
const mendEvery = time.Second

// mend stores a note for each failed Append that is its stream's last, until ctx ends: a store in another
// process would take the stream for complete.
func (s *Store) mend(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.poked:
		}
		for s.mendAll(ctx) {
			if !natsconn.Pause(ctx, mendEvery) {
				return
			}
		}
	}
}

// mendAll reports whether a note is still to be stored.
func (s *Store) mendAll(ctx context.Context) (left bool) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.broken))
	s.mu.Unlock()
	for _, st := range all {
		if err := s.mendOne(ctx, st); err != nil {
			s.cfg.Log.Debug("a failed append is still to be written down", "session", st.at.session, "error", err)
			left = true
		}
	}
	return left
}

func (s *Store) mendOne(ctx context.Context, st *stream) error {
	release, err := st.own(ctx)
	if err != nil {
		return err
	}
	defer release()
	if st.lost { // else an event was stored after it, and the missing index shows the failure
		rec, err := s.backend.Sessions.CopyOrGet(ctx, st.at.session)
		if err == nil && rec.State == session.Open {
			err = s.load(ctx, st, rec.Life)
			if err == nil {
				err = s.attempt(ctx, st, index{n: st.counted() - 1, writer: st.writer, lost: true}, nil)
			}
		}
		if err != nil && !errors.Is(err, session.ErrClosed) && !errors.Is(err, session.ErrNotFound) {
			return err
		}
		st.lost = false
		s.cfg.Log.Warn("an event may not have been stored; a client that resumes before it receives an error", "session", st.at.session, "stream", st.at.stream)
	}
	s.mu.Lock()
	delete(s.broken, st)
	s.mu.Unlock()
	return nil
}
