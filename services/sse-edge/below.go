package edge

import (
	"context"
	"errors"
	"math"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
)

// below reads a page for a cursor that lies below the window's floor, out of the log.
func (r *reader) below(ctx context.Context, v view, s *step) error {
	var err error
	if r.place.stream == "" {
		err = r.flowBelow(ctx, v, s)
	} else {
		err = r.streamBelow(ctx, v, s)
	}
	if err == nil && s.empty() {
		return errAgain
	}
	return err
}

// streamBelow reads a page of one stream. The ledger's answer, which follows the read,
// has all that judging it takes; only without it are the markers looked for in the log.
func (r *reader) streamBelow(ctx context.Context, v view, s *step) error {
	page, err := r.part.backlog.read(ctx, r.place, r.cursor, v.floor-1, r.limit)
	if err != nil {
		return err
	}
	m, err := r.part.looks.marksOf(ctx, r.place, v)
	if err != nil {
		return r.streamWithoutLedger(ctx, v, s, page, err)
	}
	r.oldest, r.oldestKnown = m.First, true
	items := r.itemsBefore(page, v, r.part.endOf(r.place.session, r.place.stream), m.Closed)
	reply := marks.Reply{Default: m.Mark, Marks: []marks.StreamMark{{Session: r.place.session, Stream: r.place.stream, Mark: m.Mark}}}
	return r.finish(ctx, v, s, page, items, reply, nil)
}

// streamWithoutLedger goes on with a page when the ledger does not answer.
func (r *reader) streamWithoutLedger(ctx context.Context, v view, s *step, page eventlog.Page, why error) error {
	if ctx.Err() != nil || errors.Is(why, errBehind) {
		return errors.Join(ctx.Err(), why)
	}
	// Markers that were written since the reader came are on its chain, so one look at
	// the log does for all pages.
	if r.cleared == nil {
		r.cleared, r.closed = map[string]uint64{}, map[string]uint64{}
	}
	if moved, err := r.passClearedBelow(ctx, v, s); err != nil || moved {
		return errors.Join(err, again(moved))
	}
	closed, err := r.closedAt(ctx, r.place.stream)
	if err != nil {
		return err
	}
	return r.finish(ctx, v, s, page, r.itemsBefore(page, v, closed), marks.Reply{}, why)
}

// flowBelow reads a page of a session's flow.
func (r *reader) flowBelow(ctx context.Context, v view, s *step) error {
	r.cleared, r.closed = map[string]uint64{}, map[string]uint64{} // the chain does not know its streams' markers
	if moved, err := r.passClearedBelow(ctx, v, s); err != nil || moved {
		return errors.Join(err, again(moved))
	}
	page, err := r.part.backlog.read(ctx, r.place, r.cursor, v.floor-1, r.limit)
	if err != nil {
		return err
	}
	items, err := r.itemsOfFlow(ctx, page)
	if err != nil {
		return err
	}
	reply, err := r.part.marksNow(ctx, r.place, v, page.Through)
	return r.finish(ctx, v, s, page, items, reply, err)
}

// finish judges what was read and moves the cursor behind it.
func (r *reader) finish(ctx context.Context, v view, s *step, page eventlog.Page, items []item, reply marks.Reply, err error) error {
	found, err := r.judge(ctx, reply, err, items, page.Through)
	s.add(found...)
	if err != nil {
		return err
	}
	s.found(r.keep(items))
	r.cursor = max(r.cursor, page.Through)
	r.retagBeyond(v)
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

// itemsBefore frames the messages of a stream's page as the window would have, up to
// where the stream ended: the first of some sequences, of which 0 means nothing.
func (r *reader) itemsBefore(page eventlog.Page, v view, ends ...uint64) []item {
	end := uint64(math.MaxUint64)
	for _, e := range append(ends, v.closed, r.final) {
		if e != 0 {
			end = min(end, e)
		}
	}
	items := r.items[:0]
	for _, e := range page.Entries {
		if e.Subject.Kind != event.Message || e.Sequence > end || !validMessage(e.Data) {
			continue
		}
		if e.Final {
			r.final, end = e.Sequence, e.Sequence
		}
		items = append(items, r.itemOf(e))
	}
	r.items = items
	return items
}

// itemsOfFlow is itemsBefore for a session's flow.
func (r *reader) itemsOfFlow(ctx context.Context, page eventlog.Page) ([]item, error) {
	items := r.items[:0]
	for _, e := range page.Entries {
		if e.Subject.Kind != event.Message || !validMessage(e.Data) {
			continue
		}
		closed, err := r.closedAt(ctx, e.Subject.Stream)
		if err != nil {
			return nil, err
		}
		cleared, err := r.clearedAt(ctx, e.Subject.Stream)
		if err != nil {
			return nil, err
		}
		if e.Sequence <= closed && e.Sequence >= cleared {
			items = append(items, r.itemOf(e))
		}
	}
	r.items = items
	return items, nil
}

func (r *reader) itemOf(e eventlog.Entry) item {
	prefix := event.AppendIDPrefix(nil, e.Subject.Stream, r.tags.tag(e.Subject.Stream))
	it := item{
		stream: e.Subject.Stream, sequence: e.Sequence, time: e.Time.UnixNano(),
		frame: appendFrame(nil, prefix, e.Sequence, e.Type, e.Data), segment: ofLog,
	}
	if r.part.traced && e.Trace.Sampled() {
		it.trail = &trail{publish: e.Trace.Span()}
	}
	return it
}
