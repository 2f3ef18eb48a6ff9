package edge

import (
	"context"
	"errors"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// below reads a page for a cursor that lies below the window's floor, out of the log.
func (r *reader) below(ctx context.Context, v view, s *step) error {
	// Markers of a single stream that were written since the reader came are on its
	// chain, so one look at the log does for all pages. Those of a flow's streams are not.
	if r.cleared == nil || r.place.stream == "" {
		r.cleared, r.closed = map[string]uint64{}, map[string]uint64{}
	}
	upTo := v.floor - 1
	if moved, err := r.passClearedBelow(ctx, v, s); err != nil || moved {
		return errors.Join(err, again(moved))
	}
	page, err := r.part.backlog.read(ctx, r.place, r.cursor, upTo, r.limit)
	if err != nil {
		return err
	}
	items, err := r.itemsOf(ctx, v, page)
	if err != nil {
		return err
	}
	reply, err := r.part.marksNow(ctx, r.place, v, page.Through)
	found, err := r.judge(ctx, reply, err, items, page.Through)
	s.add(found...)
	if err != nil {
		return err
	}
	s.items = r.keep(items)
	r.cursor = max(r.cursor, page.Through)
	r.retagBeyond(v)
	if s.empty() {
		return errAgain
	}
	return nil
}

func again(yes bool) error {
	if yes {
		return errAgain
	}
	return nil
}

// passClearedBelow moves the cursor over what a =clear marker of the stream or
// session took away, and reports whether it did. A flow's cursor moves for the
// session's marker only.
func (r *reader) passClearedBelow(ctx context.Context, v view, s *step) (moved bool, err error) {
	marker := v.clearedAt
	if r.place.stream == "" {
		marker = 0
	}
	for _, stream := range []string{"", r.place.stream} {
		at, err := r.clearedAt(ctx, stream)
		if err != nil {
			return false, err
		}
		marker = max(marker, at)
	}
	if marker <= r.cursor {
		return false, nil
	}
	if r.fresh {
		if err := r.inStep(ctx); err != nil {
			return false, err
		}
	} else {
		lost, certain, err := r.lostBefore(ctx, v, marker)
		if err != nil {
			return false, err
		}
		if lost {
			s.add(r.gap(ReasonCleared, certain, r.place.stream))
		}
	}
	r.cursor = marker
	return true, nil
}

// lostBefore reports whether a =clear marker took an event behind the cursor away,
// and whether that is certain.
func (r *reader) lostBefore(ctx context.Context, v view, marker uint64) (lost, certain bool, err error) {
	reply, err := r.part.marksNow(ctx, r.place, v, marker)
	if ctx.Err() != nil || errors.Is(err, errBehind) {
		return false, false, errors.Join(ctx.Err(), err)
	}
	lost = err != nil || reply.Default.Maybe > r.cursor && !listed(reply.Marks, r.place.stream)
	for _, m := range reply.Marks {
		if r.place.stream == "" || m.Stream == r.place.stream {
			certain = certain || m.Removed > r.cursor
			lost = lost || m.Maybe > r.cursor
		}
	}
	if !certain {
		if certain, err = r.leftBefore(ctx, marker); err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return false, false, err
		}
	}
	return lost || certain, certain, nil
}

// leftBefore reports whether an event between the cursor and a =clear marker is
// still in the log.
func (r *reader) leftBefore(ctx context.Context, marker uint64) (bool, error) {
	if r.place.stream != "" {
		first, err := r.part.log.First(ctx, r.subject(event.Message, r.place.stream), r.cursor+1)
		return err == nil && first < marker, err
	}
	for after := r.cursor; after+1 < marker; {
		page, err := r.part.log.Read(ctx, eventlog.Query{Session: r.place.session, After: after, UpTo: marker - 1, MaxEvents: 100, MaxBytes: 1 << 20})
		if err != nil {
			return false, err
		}
		for _, e := range page.Entries {
			if e.Subject.Kind == event.Message {
				return true, nil
			}
		}
		after = page.Through
	}
	return false, nil
}

// findFinal looks whether a stream that the window has nothing of ended with a final
// event that was delivered.
func (r *reader) findFinal(ctx context.Context) error {
	at, err := r.part.log.Last(ctx, r.subject(event.Message, r.place.stream))
	if err == nil && at <= r.cursor {
		var e eventlog.Entry
		if e, err = r.part.log.At(ctx, r.part.number, at); err == nil && e.Final {
			r.final = at
		}
	}
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil
	}
	return err
}

// clearedAt returns the sequence of the newest =clear marker of a stream, or of
// the session when stream is empty, and 0 when there is none.
func (r *reader) clearedAt(ctx context.Context, stream string) (uint64, error) {
	return once(r.cleared, stream, func() (uint64, error) {
		return r.part.log.Last(ctx, r.subject(event.Clear, stream))
	})
}

// closedAt returns the sequence at which a stream ended, that of its first =close
// marker or its session's, and the largest number while it is open.
func (r *reader) closedAt(ctx context.Context, stream string) (uint64, error) {
	end := r.part.endOf(r.place.session, stream)
	for _, of := range []string{"", stream} {
		at, err := once(r.closed, of, func() (uint64, error) {
			return r.part.log.First(ctx, r.subject(event.Close, of), 1)
		})
		if err != nil {
			return 0, err
		}
		if at != 0 {
			end = min(end, at)
		}
	}
	return end, nil
}

// once looks for a stream's marker, unless it is known; 0 means that there is none.
func once(known map[string]uint64, stream string, look func() (uint64, error)) (uint64, error) {
	if at, ok := known[stream]; ok {
		return at, nil
	}
	at, err := look()
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return 0, err
	}
	known[stream] = at
	return at, nil
}

// itemsOf frames the messages of a page as the window would have.
func (r *reader) itemsOf(ctx context.Context, v view, page eventlog.Page) ([]item, error) {
	items := r.items[:0]
	for _, e := range page.Entries {
		if e.Subject.Kind != event.Message || !validMessage(e.Data) {
			continue
		}
		closed, err := r.closedAt(ctx, e.Subject.Stream)
		if err != nil {
			return nil, err
		}
		if e.Sequence > closed || v.closed != 0 && e.Sequence > v.closed || r.final != 0 && e.Sequence > r.final {
			continue
		}
		if e.Final && r.place.stream != "" {
			r.final = e.Sequence
		}
		if r.place.stream == "" {
			cleared, err := r.clearedAt(ctx, e.Subject.Stream)
			if err != nil {
				return nil, err
			}
			if e.Sequence < cleared {
				continue
			}
		}
		prefix := event.AppendIDPrefix(nil, e.Subject.Stream, r.tags.tag(e.Subject.Stream))
		items = append(items, item{
			stream: e.Subject.Stream, sequence: e.Sequence, time: e.Time.UnixNano(),
			frame: appendFrame(nil, prefix, e.Sequence, e.Type, e.Data), segment: ofLog,
		})
	}
	r.items = items
	return items, nil
}
