package edge

import (
	"context"
	"errors"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// below reads a page for a cursor that lies below the window's floor, out of the
// log. At most --log-reads of these go on at a time on an edge.
func (r *reader) below(ctx context.Context, v view, s *step) error {
	select {
	case r.part.reads <- struct{}{}:
		defer func() { <-r.part.reads }()
	case <-ctx.Done():
		return ctx.Err()
	}
	r.part.metrics.logReads.Inc()
	upTo := v.floor - 1
	if moved, err := r.passClearedBelow(ctx, v, s); err != nil || moved {
		return errors.Join(err, again(moved))
	}
	page, err := r.part.log.Read(ctx, eventlog.Query{
		Session: r.place.session, Stream: r.place.stream,
		After: r.cursor, UpTo: upTo, MaxEvents: r.limit.events, MaxBytes: r.limit.bytes,
	})
	if err != nil {
		return err
	}
	items, err := r.itemsOf(ctx, page)
	if err != nil {
		return err
	}
	reply, err := r.part.marksNow(ctx, r.place, v.birth, page.Through)
	found, err := r.judge(ctx, reply, err, items)
	if err != nil {
		return err
	}
	s.gaps = append(s.gaps, found...)
	s.items = r.keep(items)
	if len(items) > 0 || page.Through >= upTo {
		r.fresh = false
	}
	r.cursor = max(r.cursor, page.Through)
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
	if !r.fresh {
		reply, err := r.part.marksNow(ctx, r.place, v.birth, marker)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		lost := err != nil
		for _, m := range reply.Marks {
			lost = lost || m.Removed > r.cursor && (r.place.stream == "" || m.Stream == r.place.stream)
		}
		if first, firstErr := r.firstAfter(ctx); firstErr == nil && first < marker {
			lost, err = true, nil
		}
		if lost {
			s.gaps = append(s.gaps, r.gap(ReasonCleared, err == nil, r.place.stream))
		}
	}
	r.cursor = marker
	return true, nil
}

// firstAfter returns the oldest retained event of the stream behind the cursor.
func (r *reader) firstAfter(ctx context.Context) (uint64, error) {
	if r.place.stream == "" {
		page, err := r.part.log.Read(ctx, eventlog.Query{Session: r.place.session, After: r.cursor, UpTo: ^uint64(0) - 1, MaxEvents: 1, MaxBytes: 1})
		if err != nil || len(page.Entries) == 0 {
			return 0, errors.Join(eventlog.ErrNotFound, err)
		}
		return page.Entries[0].Sequence, nil
	}
	return r.part.log.First(ctx, r.subject(event.Message, r.place.stream), r.cursor+1)
}

// clearedAt returns the sequence of the newest =clear marker of a stream, or of
// the session when stream is empty, and 0 when there is none. Markers that come
// later are seen by the window, so each is looked for once.
func (r *reader) clearedAt(ctx context.Context, stream string) (uint64, error) {
	if at, ok := r.cleared[stream]; ok {
		return at, nil
	}
	at, err := r.part.log.Last(ctx, r.subject(event.Clear, stream))
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return 0, err
	}
	if r.cleared == nil {
		r.cleared = map[string]uint64{}
	}
	r.cleared[stream] = at
	return at, nil
}

// itemsOf frames the messages of a page as the window would have.
func (r *reader) itemsOf(ctx context.Context, page eventlog.Page) ([]item, error) {
	items := r.items[:0]
	for _, e := range page.Entries {
		if e.Subject.Kind != event.Message || !validMessage(e.Data) {
			continue
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
			frame: appendFrame(nil, prefix, e.Sequence, e.Type, e.Data), segment: ^uint64(0),
		})
	}
	r.items = items
	return items, nil
}
