package cursor

import (
	"context"
	"errors"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// below reads a page for a cursor that lies below the window, out of the log.
func (r *Reader) below(ctx context.Context, v window.View, s *Step) error {
	page, err := r.part.backlog.read(ctx, r.Place, r.Cursor, v.Start-1, r.limit)
	if err != nil {
		return err
	}
	if r.Hold != nil {
		size := 0
		for _, e := range page.Entries {
			size += len(e.Data)
		}
		if !r.Hold(size) {
			return ErrNoMemory
		}
	}
	if err := r.skipBelow(ctx, v, page, s); err != nil {
		return err
	}
	items := r.keep(r.itemsOf(page))
	if _, err := r.reportDamaged(ctx, v, items, s); err != nil {
		return err
	}
	s.Found(items)
	r.Cursor = max(r.Cursor, page.Through)
	r.retagBeyond(v)
	if len(s.Items) == 0 {
		return errAgain // a gap ends just before the event that follows it, however far that is
	}
	return nil
}

// beforeLast returns the sequence before the n newest events of the place; 0 when there are fewer.
// Below the window, events of a flow that are announced as removed and not yet deleted count.
func (r *Reader) beforeLast(ctx context.Context, n int) (uint64, error) {
	before, left, start := r.part.window.BeforeLast(r.Chain, n)
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

// findEnd looks in the log whether a place ended of which the window has nothing: at its
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
		r.end = end.Sequence
	case newest.Final:
		r.end = newest.Sequence
	}
	return nil
}

// newest returns the newest entry of a subject, the zero Entry when there is none. The answer has
// all of an event, and a server ends a connection for which 64 MiB wait: so few are asked for at a time.
func (r *Reader) newest(ctx context.Context, s event.Subject) (eventlog.Entry, error) {
	if err := takeToken(ctx, r.part.of.newest); err != nil {
		return eventlog.Entry{}, err
	}
	defer func() { <-r.part.of.newest }()
	e, err := r.part.log.Newest(ctx, s)
	if errors.Is(err, eventlog.ErrNotFound) {
		return eventlog.Entry{}, nil
	}
	return e, err
}

// once looks for a stream's newest clear, unless that is known; 0 means that there is none.
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
	if r.part.traced && e.Trace.Sampled() {
		it.Trail = &window.Trail{Publish: e.Trace.Span(), Subject: e.Subject}
	}
	return it
}
