package mcpstore

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// After returns all events that were appended to a stream after an index, or one error:
// no event is yielded before all were read and found complete. With index -1 that is
// the whole stream, which is incomplete once its first event was trimmed.
//
// Errors wrap [ErrLost], [ErrAhead], [ErrForked], [ErrUnknownSession], [ErrInvalidName],
// [session.ErrClosed], or report that NATS is unavailable, or are ctx's.
func (s *Store) After(ctx context.Context, sessionID, streamID string, index int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		all, err := s.after(ctx, sessionID, streamID, index)
		if err != nil {
			yield(nil, fmt.Errorf("stream %q, index %d: %w", streamID, index, err))
			return
		}
		for _, data := range all {
			if !yield(data, nil) {
				return
			}
		}
	}
}

func (s *Store) after(ctx context.Context, sessionID, streamID string, index int) ([][]byte, error) {
	at, err := placeOf(sessionID, streamID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var all [][]byte
	err = patiently(ctx, func() error {
		all, err = s.tryAfter(ctx, at, index)
		return err
	})
	return all, err
}

func (s *Store) tryAfter(ctx context.Context, at place, index int) ([][]byte, error) {
	rec, err := s.backend.Sessions.CopyOrGet(ctx, at.session)
	switch {
	case err != nil && !errors.Is(err, session.ErrNotFound):
		return nil, err
	case err == nil && rec.State != session.Open:
		return nil, fmt.Errorf("%w: session %s", session.ErrClosed, at.session)
	}
	known, count := false, 0
	if st := s.streams.get(at); st != nil {
		if known, err = s.knows(ctx, st, rec.Life); err != nil {
			return nil, err
		}
		count = st.counted()
	}
	h, err := s.read(ctx, at, rec.Life)
	if err != nil {
		return nil, err
	}
	if h.last < 0 && count == 0 && !known {
		if rec.Session == "" {
			return nil, ErrUnknownSession
		}
		whole, err := s.whole(ctx, at, rec.Life)
		if err != nil {
			return nil, err
		}
		if !whole {
			return nil, ErrLost
		}
	}
	return h.after(index, count)
}

// knows reports whether the store knows all of a stream's indexes. Until it knows the stream's last index
// of earlier writers, each of its own Appends has failed.
func (s *Store) knows(ctx context.Context, st *stream, life string) (bool, error) {
	release, err := st.own(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if st.writer == "" && st.counted() > 0 {
		return true, s.load(ctx, st, life)
	}
	return st.writer != "", nil
}

// unknownIndex is the index at which a stream continues when the number of its events is unknown:
// no client has so high an index.
const unknownIndex = 1 << 30

// load reads the last index of a stream in a life of its session before the store writes to
// it. The caller holds its token.
func (s *Store) load(ctx context.Context, st *stream, life string) error {
	if st.writer != "" && st.life == life {
		return nil
	}
	h, err := s.read(ctx, st.at, life)
	if err != nil {
		return err
	}
	from := h.last + 1
	if h.last < 0 {
		whole, err := s.whole(ctx, st.at, life)
		if err != nil {
			return err
		}
		if !whole {
			from = unknownIndex
		}
	}
	st.begin(life, from)
	return nil
}

// reload has a store that opens a stream again continue after events that other writers have
// stored meanwhile. The caller holds the stream's token.
func (s *Store) reload(ctx context.Context, st *stream) error {
	h, err := s.read(ctx, st.at, st.life)
	if err == nil && h.last >= 0 && h.writer != st.writer {
		st.begin(st.life, st.before+max(h.last+1-st.counted(), 0))
	}
	return err
}

// Bounds of one read.
const (
	pageEvents = 1000
	pageBytes  = 4 << 20
)

// read reads the remaining entries of a stream. The caller reads again when the partition has
// begun another generation meanwhile, or has lost the entry that was read last: only an entry that
// still exists afterwards proves that no later one was deleted before it could be read.
func (s *Store) read(ctx context.Context, at place, life string) (history, error) {
	l := s.backend.Log
	p := l.Partition(at.session)
	before, err := l.Look(ctx, p)
	if err != nil {
		return history{}, err
	}
	records, newest, err := s.records(ctx, at, life, before.Last)
	if err != nil {
		return history{}, err
	}
	cleared, err := s.cleared(ctx, p, at, life)
	if err != nil {
		return history{}, err
	}
	if newest > cleared {
		first, err := l.First(ctx, event.Subject{Partition: p, Session: at.session, Life: life, Stream: at.stream}, 1)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return history{}, err
		}
		if err != nil || first > newest {
			return history{}, errGone
		}
	}
	after, err := l.Look(ctx, p)
	if err != nil {
		return history{}, err
	}
	if after.Origin != before.Origin || after.Generation() != before.Generation() {
		return history{}, errGone
	}
	return newHistory(records, cleared), nil
}

// errGone is returned when the entries that were read were removed meanwhile, so that the stream has to be read again.
var errGone = fmt.Errorf("%w: the stream has changed while it was read", eventlog.ErrUnavailable)

// records reads a stream up to a sequence. newest is the sequence of its last entry.
func (s *Store) records(ctx context.Context, at place, life string, upTo uint64) (all []record, newest uint64, err error) {
	q := eventlog.Query{Session: at.session, Life: life, Stream: at.stream, UpTo: upTo, MaxEvents: pageEvents, MaxBytes: pageBytes}
	for q.After < upTo {
		page, err := s.backend.Log.Read(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range page.Entries {
			newest = e.Sequence
			if i, ok := parseIndex(e.Index); ok { // others are not ours, nor the SDK's
				all = append(all, record{index: i, sequence: e.Sequence, data: e.Data})
			}
		}
		q.After = page.Through
	}
	return all, newest, nil
}

// cleared returns the sequence of the newest clear of a stream or its session; 0 when neither
// was cleared.
func (s *Store) cleared(ctx context.Context, p int, at place, life string) (uint64, error) {
	newest := uint64(0)
	for _, stream := range []string{"", at.stream} {
		sequence, err := s.backend.Log.NewestSequence(ctx, event.Subject{Partition: p, Session: at.session, Life: life, Stream: stream, Kind: event.Clear})
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return 0, err
		}
		newest = max(newest, sequence)
	}
	return newest, nil
}

// whole reports whether no event was ever removed from a stream of which the log holds no events:
// without a birth, which stays as long as the life does, it never had an event.
func (s *Store) whole(ctx context.Context, at place, life string) (bool, error) {
	l := s.backend.Log
	p := l.Partition(at.session)
	born, err := l.Has(ctx, event.Subject{Partition: p, Session: at.session, Life: life, Stream: at.stream, Kind: event.Birth})
	if err != nil || !born {
		return err == nil, err
	}
	missing, _, err := l.LossesAfter(ctx, l.LookAfterRead, at.session, life, at.stream, 0, 0)
	return len(missing) == 0, err
}
