package cursor

import (
	"cmp"
	"context"
	"errors"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// below reads a page for a cursor that lies below the window, out of the log.
func (r *Reader) below(ctx context.Context, v window.View, s *Step) error {
	if r.seekEnd && !r.HasEnd() {
		if err := r.findEnd(ctx); err != nil {
			return err
		}
		r.seekEnd = false
	}
	page, err := r.part.backlog.read(ctx, r.Place, r.Cursor, v.Start-1, r.limit)
	if err != nil {
		return err
	}
	if r.Hold != nil {
		size := 0
		for _, e := range page.Entries {
			size += len(e.Data)
		}
		switch {
		case r.Hold(size):
		case r.Await == nil || size <= r.limit.Bytes:
			return ErrNoMemory
		default:
			return cmp.Or(r.Await(ctx, size), errReadAgain)
		}
	}
	if err := r.skipBelow(ctx, v, page, s); err != nil {
		return err
	}
	if state, _ := r.part.log.State(r.part.number); state.Last < page.Through { // a look at the leader has followed the read
		return errNoQuorum
	}
	items := r.keep(r.itemsOf(page))
	if _, err := r.reportDamaged(ctx, v, items, s); err != nil {
		return err
	}
	if err := r.reportForgotten(ctx, s); err != nil {
		return err
	}
	r.found(s, items)
	r.Cursor = max(r.Cursor, page.Through)
	if len(s.Items) == 0 {
		return errReadAgain // a gap ends just before the event that follows it, however far that is
	}
	return nil
}

// beforeNewest returns the sequence before the n newest events of the place; 0 when there are fewer.
// Below the window, events of a flow that are announced as removed and not yet deleted count.
func (r *Reader) beforeNewest(ctx context.Context, n int) (uint64, error) {
	_ = r.part.tryCatchUp(ctx) // while the log does not answer, the window's newest events suffice
	before, left, start := r.part.window.BeforeNewest(r.Chain, n)
	if left == 0 || start <= 1 {
		return before, nil
	}
	give, err := takeOne(ctx, r.part.of.scans)
	if err != nil {
		return 0, err
	}
	defer give()
	to := start - 1
	for span := uint64(16 * n); left > 0 && to > 0; span *= 16 { // the log is read forwards only
		from := to - min(span, to)
		newest, err := r.part.backlog.newest(ctx, r.Place, from, to, left)
		if err != nil {
			return 0, err
		}
		if left -= len(newest); left == 0 {
			return newest[0] - 1, nil
		}
		to = from
	}
	return before, nil
}

// reportForgotten reports a gap, once, if the log has forgotten the life and its name has a later one: the
// entries that would show which events are missing are deleted as well. The caller reads a page before.
func (r *Reader) reportForgotten(ctx context.Context, s *Step) error {
	newest, known := r.part.window.Session(r.Place.Session)
	if r.toldForgotten || !known || r.Place.Life == "" || newest.Life == r.Place.Life {
		return nil
	}
	end, err := r.newest(ctx, r.Subject(event.End, ""))
	if err == nil && end.Sequence == 0 {
		r.toldForgotten = true
		s.add(r.gap(ReasonUnknown, false, r.Place.Stream))
	}
	return err
}

// findEnd asks the log whether a place of which the window holds nothing has ended: at its
// end, at a final event, or with its life.
func (r *Reader) findEnd(ctx context.Context) error {
	var newest eventlog.Entry
	if r.Place.Stream != "" {
		var err error
		if newest, err = r.newest(ctx, r.Subject(event.Message, r.Place.Stream)); err != nil {
			return err
		}
	}
	end, err := r.newest(ctx, r.Subject(event.End, r.Place.Stream))
	if err == nil && newest.Sequence == 0 && end.Sequence == 0 && r.Place.Stream != "" {
		end, err = r.newest(ctx, r.Subject(event.End, ""))
	}
	switch {
	case err != nil:
		return err
	case newest.Sequence <= end.Sequence:
		r.end = cmp.Or(end.Began, end.Sequence)
	case newest.Final:
		r.end = newest.Sequence
	}
	return nil
}

// newest returns the newest entry of a subject; the zero Entry without one.
func (r *Reader) newest(ctx context.Context, s event.Subject) (eventlog.Entry, error) {
	e, err := r.part.of.Newest(ctx, s)
	if errors.Is(err, eventlog.ErrNotFound) {
		return eventlog.Entry{}, nil
	}
	return e, err
}

// itemsOf frames the messages of a page as the window would have.
func (r *Reader) itemsOf(page eventlog.Page) []window.Item {
	items := r.items[:0]
	for _, e := range page.Entries {
		if !validMessage(e.Data) {
			continue
		}
		if e.Sequence > r.end {
			r.end = 0 // the log decides: the stream continues
		}
		if e.Final && r.Place.Stream != "" {
			r.end = e.Sequence
		}
		items = append(items, r.itemOf(e))
	}
	r.items = items
	return items
}

func (r *Reader) itemOf(e eventlog.Entry) window.Item {
	prefix := event.AppendIDPrefix(nil, e.Subject.Stream, r.Tags.Tag(e.Subject.Stream))
	it := window.Item{
		Stream: e.Subject.Stream, Sequence: e.Sequence, Time: e.Time.UnixNano(),
		Frame: window.AppendFrame(nil, prefix, e.Sequence, e.Type, e.Data), Segment: window.OfLog, FromLog: true,
	}
	if r.part.of.cfg.Traced && e.Trace.Sampled() {
		it.Trail = &window.Trail{Publish: e.Trace.Span(), Subject: e.Subject}
	}
	return it
}

// skipBelow moves the cursor over the removed events of a page, which was read from the log below the window.
// The error errOtherGeneration means that the page is of another generation than the window.
func (r *Reader) skipBelow(ctx context.Context, v window.View, page eventlog.Page, s *Step) error {
	// Before the look: the floor may pass a clear once it has passed the cleared events.
	if err := r.fetchClears(ctx, page); err != nil {
		return err
	}
	// The answer of an earlier page is still good when no trim was stored since, the window holds
	// all trims since, and the floor of the log has not passed the cursor or has not moved.
	if r.asked > 0 {
		state, err := r.part.looks.after(ctx, v.Extent)
		if err != nil {
			return err
		}
		if newest, start := r.part.window.Trims(r.Chain); newest <= r.asked && start <= r.asked+1 && state.First <= max(r.Cursor+1, r.askedFirst) {
			r.skipCleared(v, page, s)
			return nil
		}
	}
	state, _, err := r.skipRemoved(ctx, v, 0, s)
	if err != nil {
		return err
	}
	// The trims were read before the look, which may show one that was stored in between.
	r.asked, r.askedFirst = min(state.Last, v.End), state.First
	r.skipCleared(v, page, s)
	return nil
}

// fetchClears asks the log for the newest clear of the session and of each stream with events on a
// page; [Reader.cleared] has 0 for one without a clear.
func (r *Reader) fetchClears(ctx context.Context, page eventlog.Page) error {
	if r.cleared == nil || r.Place.Stream == "" {
		r.cleared = map[string]uint64{} // a flow's chain does not know its streams' markers
	}
	for _, e := range page.Entries {
		for _, stream := range []string{"", e.Subject.Stream} {
			if _, known := r.cleared[stream]; known {
				continue
			}
			at, err := r.part.log.NewestSequence(ctx, r.Subject(event.Clear, stream))
			if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
				return err
			}
			r.cleared[stream] = at
		}
	}
	return nil
}

// skipCleared drops the cleared events of a page before the janitor announces their
// removal.
func (r *Reader) skipCleared(v window.View, page eventlog.Page, s *Step) {
	for _, e := range page.Entries {
		for _, stream := range []string{"", e.Subject.Stream} {
			if e.Sequence <= r.DroppedTo(e.Subject.Stream) {
				break
			}
			at := r.cleared[stream]
			if r.Place.Stream != "" { // its chain knows the later clears
				stream, at = r.Place.Stream, max(at, v.ClearedAt)
			}
			if e.Sequence < at {
				r.skip(s, eventlog.Loss{Stream: stream, UpTo: at, Reason: eventlog.Cleared, Certain: true})
			}
		}
	}
}
