package mcpstore

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/session"
)

// After returns everything that was appended to a stream behind an index, or one error:
// nothing is yielded before all of it was read and found complete. With index -1 that is
// the whole stream, which lacks something as soon as its first event was trimmed.
//
// Errors wrap [ErrLost], [ErrAhead], [ErrForked], [ErrUnknownSession], [ErrInvalidName],
// [session.ErrClosed], or say that NATS is away, or ctx's.
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
	ctx, cancel := s.bound(ctx, true)
	defer cancel()
	var all [][]byte
	err = patiently(ctx, func() error {
		all, err = s.tryAfter(ctx, at, index)
		return err
	})
	return all, err
}

func (s *Store) tryAfter(ctx context.Context, at place, index int) ([][]byte, error) {
	rec, err := s.backend.Sessions.Learn(ctx, at.session)
	switch {
	case err != nil && !errors.Is(err, session.ErrNotFound):
		return nil, err
	case err == nil && rec.State != session.Open:
		return nil, fmt.Errorf("%w: session %s", session.ErrClosed, at.session)
	}
	known, count := false, 0
	if st := s.streams.get(at); st != nil {
		if known, err = s.knows(ctx, st); err != nil {
			return nil, err
		}
		count = st.counted()
	}
	h, err := s.read(ctx, at)
	if err != nil {
		return nil, err
	}
	if h.last < 0 && count == 0 && !known {
		if rec.Session == "" {
			return nil, ErrUnknownSession
		}
		whole, err := s.whole(ctx, at)
		if err != nil {
			return nil, err
		}
		if !whole {
			return nil, ErrLost
		}
	}
	return h.after(index, count)
}

// knows reports whether the store knows all of a stream's indexes. While it is not
// known where the stream began, what was appended since has failed.
func (s *Store) knows(ctx context.Context, st *stream) (bool, error) {
	release, err := st.own(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if st.writer == "" && st.counted() > 0 {
		return true, s.load(ctx, st)
	}
	return st.writer != "", nil
}

// unknownIndex is where a stream goes on when nobody knows how many events it has had:
// no client has an index there.
const unknownIndex = 1 << 30

// load finds out where a stream ended before the store writes to it. The caller holds
// its token.
func (s *Store) load(ctx context.Context, st *stream) error {
	if st.writer != "" {
		return nil
	}
	h, err := s.read(ctx, st.at)
	if err != nil {
		return err
	}
	from := h.last + 1
	if h.last < 0 {
		whole, err := s.whole(ctx, st.at)
		if err != nil {
			s.cfg.Log.Warn("a stream goes on as one that has lost events, since no janitor says that it has not", "session", st.at.session, "error", err)
		}
		if !whole {
			from = unknownIndex
		}
	}
	st.add(from)
	st.writer = newWriter()
	return nil
}

// reload has a store that opens a stream again go on behind whoever has written to it
// meanwhile. The caller holds the stream's token.
func (s *Store) reload(ctx context.Context, st *stream) error {
	h, err := s.read(ctx, st.at)
	if err == nil && h.last >= 0 && h.writer != st.writer {
		st.add(max(h.last+1-st.counted(), 0))
		st.writer = newWriter()
	}
	return err
}

// Bounds of one read.
const (
	pageEvents = 1000
	pageBytes  = 4 << 20
)

// read reads what is left of a stream. It is read again when the partition has begun
// another generation meanwhile, or has lost what was read last: only what is still there
// afterwards proves that nothing behind it went before it could be read.
func (s *Store) read(ctx context.Context, at place) (history, error) {
	l := s.backend.Log
	p := l.Partition(at.session)
	before, err := l.Look(ctx, p)
	if err != nil {
		return history{}, err
	}
	records, newest, err := s.records(ctx, at, before.Last)
	if err != nil {
		return history{}, err
	}
	cleared, err := s.cleared(ctx, p, at)
	if err != nil {
		return history{}, err
	}
	if newest > cleared {
		first, err := l.First(ctx, event.Subject{Partition: p, Session: at.session, Stream: at.stream}, 1)
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
	if after.Birth != before.Birth || after.Generation() != before.Generation() {
		return history{}, errGone
	}
	return newHistory(records, cleared), nil
}

// errGone is returned when what was read is gone, and has to be read again.
var errGone = fmt.Errorf("%w: the stream has changed while it was read", eventlog.ErrUnavailable)

// records reads a stream up to a sequence. newest is the sequence of its last entry.
func (s *Store) records(ctx context.Context, at place, upTo uint64) (all []record, newest uint64, err error) {
	q := eventlog.Query{Session: at.session, Stream: at.stream, UpTo: upTo, MaxEvents: pageEvents, MaxBytes: pageBytes}
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

// cleared returns the sequence of the newest =clear marker of a stream or its session;
// 0 when there is none.
func (s *Store) cleared(ctx context.Context, p int, at place) (uint64, error) {
	newest := uint64(0)
	for _, stream := range []string{"", at.stream} {
		marker, err := s.backend.Log.Last(ctx, event.Subject{Partition: p, Session: at.session, Stream: stream, Kind: event.Clear})
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return 0, err
		}
		newest = max(newest, marker)
	}
	return newest, nil
}

// whole asks the janitor whether nothing was ever removed from a stream of which the log
// holds nothing. The error wraps [marks.ErrUnavailable] when nobody answers.
func (s *Store) whole(ctx context.Context, at place) (bool, error) {
	p := s.backend.Log.Partition(at.session)
	state, err := s.backend.Log.Look(ctx, p)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, marks.AskTimeout)
	defer cancel()
	reply, err := marks.Ask(ctx, s.backend.Conn, marks.Request{
		Partition: p, Birth: state.Birth, Generation: state.Generation().ID, Through: state.Last, First: state.First,
		Limit: state.Limits.MaxEventsPerStream, Places: []marks.Place{{Session: at.session, Stream: at.stream}},
	})
	if err != nil {
		return false, err
	}
	m := reply.Places[0]
	return m.Removed == 0 && m.Maybe == 0, nil
}
