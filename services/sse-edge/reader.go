package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
)

// reader is a subscriber's cursor: where it is, and what it has found out about
// the way there. It is used by one goroutine.
//
// Replay and tail are the same: next returns what follows the cursor, out of the
// window or out of the log, and a gap where something should have followed that
// no longer exists. Nothing is sent twice, because the cursor only moves over what
// was returned; nothing is left out without a word, because everything returned
// was proved complete, or is told as a gap.
type reader struct {
	part  *partition
	place place
	chain *chain
	limit limits

	cursor uint64
	// fresh means that the client has no cursor: what is gone before the first
	// event that is still there is nothing that it missed.
	fresh bool
	came  arrival // how the client came
	// rollbacks is how many of the window's roll-backs the reader has heard of.
	rollbacks int
	// provenTo is the window's end when evidence last showed that the window lacks
	// nothing behind the cursor.
	provenTo uint64
	// last is the number of the window's entry that was returned last.
	last uint64
	// dropped holds up to which sequence each stream's events are gone and a gap was
	// told, so that older ones still at hand are not sent; "" is all of a flow's streams.
	dropped map[string]uint64
	// cleared and closed hold, for reads below the floor, the newest =clear marker and
	// the first =close marker in the log by stream; "" is the session's.
	cleared, closed map[string]uint64

	// final is the sequence of a stream's final event, when it was found in the log.
	final uint64

	// oldest is the sequence of the stream's oldest retained event, 0 when there is
	// none, as far as the ledger has told.
	oldest      uint64
	oldestKnown bool

	// given is the client's own text of the cursor, while it stands at givenAt.
	given   string
	givenAt uint64

	tags    tagger
	pending []gap // found before the first read
	items   []item
}

// step is what one call of next found.
type step struct {
	gaps  []gap
	items []item
	// first is the sequence of the first item that was found, shown to the client or not; 0
	// when there was none.
	first uint64
	// version is the chain's when the window was read, to wait for the next one.
	version uint64
	// proved is the window's proved floor when it was read.
	proved uint64
	// more: the window holds more than one step may carry.
	more bool
	// ended: there is nothing more to come, ever.
	ended bool
}

// add adds gaps. A second one of the same stream is the first one's continuation.
func (s *step) add(gaps ...gap) {
	for _, g := range gaps {
		if !slices.ContainsFunc(s.gaps, func(there gap) bool { return there.stream == g.stream }) {
			s.gaps = append(s.gaps, g)
		}
	}
}

// found enters what was read.
func (s *step) found(items []item) {
	s.items = items
	if len(items) > 0 {
		s.first = items[0].sequence
	}
}

func (s step) empty() bool { return len(s.gaps) == 0 && len(s.items) == 0 && !s.ended }

// errBehind is returned when the log is in another generation than the window, which
// has yet to find out whether it was rolled back: the two must not be read as one.
var errBehind = fmt.Errorf("%w: the window is of an earlier generation", eventlog.ErrUnavailable)

const (
	// catchUpWithin is how long a window that is behind is waited for: its tail
	// begins anew as soon as it may.
	catchUpWithin = 5 * time.Second
	catchUpEvery  = 20 * time.Millisecond
)

// catchesUp waits a moment if an attempt failed because the window is behind, and
// reports whether to try again; begun is when the first attempt was made.
func catchesUp(ctx context.Context, begun time.Time, err error) bool {
	if !errors.Is(err, errBehind) || time.Since(begun) > catchUpWithin {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(catchUpEvery):
		return true
	}
}

// errAgain is returned within next when the cursor was moved and has to be read anew.
var errAgain = errors.New("read again")

// next returns what follows the cursor and moves the cursor behind it. An empty
// step means that there is nothing now; the cursor is then at the window's end as
// it was before, and never behind where it was. Errors are those of the log.
func (r *reader) next(ctx context.Context) (step, error) {
	s := step{gaps: r.pending}
	r.pending = nil
	begun := time.Now()
	for {
		v := r.part.window.read(r, r.limit, r.items)
		r.items = v.items
		err := r.step(ctx, v, &s)
		if errors.Is(err, errAgain) || catchesUp(ctx, begun, err) {
			continue
		}
		if err != nil {
			r.pending = s.gaps // to be told at the next attempt
			return step{}, err
		}
		r.fresh = false // from here on the client has a place of its own
		r.conclude(v, &s)
		return s, nil
	}
}

// quick is next for the usual case, in which it takes no more than a look at the
// window; otherwise it says no and has changed nothing.
func (r *reader) quick() (s step, ok bool) {
	if r.fresh || len(r.pending) > 0 {
		return step{}, false
	}
	v := r.part.window.read(r, r.limit, r.items)
	r.items = v.items
	if v.rollbacks > r.rollbacks || len(v.losses) > 0 || v.lost > r.cursor || !v.inside || r.unproved(v) {
		return step{}, false
	}
	r.retag(v)
	r.take(v, &s)
	r.conclude(v, &s)
	return s, true
}

// unproved reports whether the window may lack events behind the cursor.
func (r *reader) unproved(v view) bool { return r.cursor+1 < v.proved && r.provenTo+1 < v.proved }

// take takes what a view holds and moves the cursor behind it.
func (r *reader) take(v view, s *step) {
	s.found(r.keep(v.items))
	r.retagBeyond(v)
	r.cursor, r.last = max(r.cursor, v.through), v.last
	s.more, s.proved = v.more, v.proved
	s.ended = v.closed != 0 && r.cursor >= v.closed && !v.more
}

func (r *reader) conclude(v view, s *step) {
	s.version = v.version
	s.ended = s.ended || len(s.items) == 0 && r.ended()
}

func (r *reader) step(ctx context.Context, v view, s *step) error {
	if v.rollbacks > r.rollbacks {
		r.rolledBack(v, s)
		return errAgain
	}
	r.retag(v)
	if moved := r.passCleared(v, s); moved {
		return errAgain
	}
	if !v.inside {
		return r.below(ctx, v, s)
	}
	if r.unproved(v) {
		reply, err := r.part.marksOfWindow(ctx, r.place.session, v)
		found, err := r.judge(ctx, reply, err, v.items, v.through)
		s.add(found...)
		if err != nil {
			return err
		}
		r.provenTo = v.end
	}
	r.take(v, s)
	return nil
}

// rolledBack tells a client that it has seen events which the log has lost.
func (r *reader) rolledBack(v view, s *step) {
	if r.cursor > v.common {
		if !r.fresh {
			s.add(r.gap(ReasonRolledBack, true, r.place.stream))
		}
		r.cursor = v.common
	}
	maps.DeleteFunc(r.dropped, func(_ string, upTo uint64) bool { return upTo > v.common })
	if r.final > v.common {
		r.final = 0
	}
	r.rollbacks, r.provenTo, r.last, r.cleared, r.closed = v.rollbacks, 0, 0, nil, nil
}

// passCleared moves a stream's cursor over what a =clear marker in the window took.
// A flow's cursor stays, since other streams' events lie there; each gap is told once.
func (r *reader) passCleared(v view, s *step) (moved bool) {
	if r.place.stream == "" {
		for _, l := range v.losses {
			if !r.fresh {
				s.add(r.gap(ReasonCleared, true, l.stream))
			}
			r.drop(l.stream, l.upTo)
		}
		return false
	}
	if v.lost <= r.cursor {
		return false
	}
	if !r.fresh {
		s.add(r.gap(ReasonCleared, true, r.place.stream))
	}
	r.cursor = v.lost
	return true
}

// judge compares what was read with what the ledger says was removed, which was
// asked for after the read. It moves the cursor, or notes what to drop, so that
// nothing older than a removed event is sent after the gap is told. Gaps that come
// with an error have to be told all the same.
func (r *reader) judge(ctx context.Context, reply marks.Reply, err error, items []item, through uint64) ([]gap, error) {
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errBehind) {
			return nil, errors.Join(ctx.Err(), err)
		}
		return r.withoutLedger(ctx, items, through)
	}
	var gaps []gap
	uncertain := false
	for _, m := range reply.Marks {
		if r.place.stream != "" && m.Stream != r.place.stream {
			continue
		}
		if end := r.part.endOf(r.place.session, m.Stream); m.Removed > end {
			m.Removed, m.Maybe = 0, end // what was removed had come too late to count
		}
		from := max(r.from(m.Stream, items), r.droppedTo(m.Stream))
		if m.Removed > from {
			if !r.fresh {
				gaps = append(gaps, r.gap(reasonOf(m.Reason), true, m.Stream))
			}
			r.drop(m.Stream, m.Removed)
			from = m.Removed
		} else if r.fresh && m.Removed > 0 && (r.place.stream == "" || m.Reason == marks.Cleared) {
			r.drop(m.Stream, m.Removed) // no gap on a later page either, and nothing that was cleared since it was read
		}
		uncertain = uncertain || m.Maybe > from
	}
	uncertain = uncertain || r.maybeUnlisted(reply, items)
	if !uncertain {
		return gaps, nil
	}
	more, err := r.withoutLedger(ctx, items, through)
	return append(gaps, more...), err
}

// from returns the sequence from which on nothing of a stream may be missing: the
// cursor, or for a client without one the oldest event that there is.
func (r *reader) from(stream string, items []item) uint64 {
	if !r.fresh {
		return r.cursor
	}
	for i := range items {
		if items[i].stream == stream {
			return items[i].sequence
		}
	}
	return math.MaxUint64
}

// maybeUnlisted reports whether a stream that the ledger's answer does not name
// may have lost something. A flow's streams are never all known.
func (r *reader) maybeUnlisted(reply marks.Reply, items []item) bool {
	maybe := reply.Default.Maybe
	if !r.fresh {
		return maybe > r.cursor && (r.place.stream == "" || !listed(reply.Marks, r.place.stream))
	}
	return slices.ContainsFunc(items, func(it item) bool {
		return maybe > it.sequence && !listed(reply.Marks, it.stream)
	})
}

// listed reports whether there is a mark of the stream itself.
func listed(all []marks.StreamMark, stream string) bool {
	return slices.ContainsFunc(all, func(m marks.StreamMark) bool { return m.Stream == stream })
}

// withoutLedger looks for the one proof that needs no ledger: an event of the
// stream at or before the cursor is still in the log, so that everything behind it
// is, since a stream always loses its oldest events first. Without that proof the
// client goes on with the oldest event that is still in the log: between older ones
// that happen to be at hand others may be missing. A client without a cursor begins
// there. A flow is never proved, since it may have lost all of a stream.
func (r *reader) withoutLedger(ctx context.Context, items []item, through uint64) ([]gap, error) {
	streams := []string{r.place.stream}
	proved := r.fresh
	// Nobody knows the reason; age is the limit that every quiet stream meets.
	gaps := []gap{r.gap(ReasonExpired, false, r.place.stream)}
	if r.place.stream == "" {
		streams = streamsOf(items)
	} else if len(items) == 0 && r.fresh {
		return nil, nil
	}
	gone := map[string]uint64{}
	for _, stream := range streams {
		first, err := r.part.log.First(ctx, r.subject(event.Message, stream), 1)
		switch {
		case errors.Is(err, eventlog.ErrNotFound):
			first = through + 1
		case err != nil:
			return nil, errors.Join(ctx.Err(), err)
		case first <= r.cursor+1:
			proved = proved || r.place.stream != ""
			continue
		}
		gone[stream] = first - 1
	}
	if err := r.inStep(ctx); err != nil {
		return nil, err
	}
	for stream, upTo := range gone {
		r.drop(stream, upTo)
	}
	if proved {
		return nil, nil
	}
	return gaps, nil
}

// inStep looks whether the log is in the generation of the window. If it is not, the
// error is errBehind: what the log says must not move the cursor to where the window
// has yet to find out whether it is the same there.
func (r *reader) inStep(ctx context.Context) error {
	state, err := r.part.looks.after(ctx)
	if err != nil {
		return err
	}
	return behind(state, r.tags.place.Birth, r.tags.place.Generation)
}

// behind returns errBehind if a window's newest generation is not the log's.
func behind(log eventlog.State, birth, generation string) error {
	if log.Birth != birth || log.Generation().ID != generation {
		return errBehind
	}
	return nil
}

// streamsOf returns the streams of items, each once.
func streamsOf(items []item) []string {
	var streams []string
	for i := range items {
		if !slices.Contains(streams, items[i].stream) {
			streams = append(streams, items[i].stream)
		}
	}
	return streams
}

// drop notes that a stream's events up to a sequence are gone. The cursor of a
// stream moves there, so that the gap that is told ends behind all of them.
func (r *reader) drop(stream string, upTo uint64) {
	if r.place.stream != "" {
		r.cursor = max(r.cursor, upTo)
	}
	if r.dropped == nil {
		r.dropped = map[string]uint64{}
	}
	r.dropped[stream] = max(r.dropped[stream], upTo)
}

// keep returns the items that were not dropped.
func (r *reader) keep(items []item) []item {
	if len(r.dropped) == 0 {
		return items
	}
	return slices.DeleteFunc(items, func(it item) bool { return it.sequence <= r.droppedTo(it.stream) })
}

// droppedTo returns up to which sequence a stream's events are gone.
func (r *reader) droppedTo(stream string) uint64 { return max(r.dropped[stream], r.dropped[""]) }

// goBack moves the cursor behind what a client was told of a step; see [outbox.cut].
func (r *reader) goBack(s step, told int) {
	switch {
	case told > len(s.items):
	case told > 0:
		r.cursor, r.last = s.items[told-1].sequence, s.items[told-1].number
	case len(s.items) > 0:
		r.cursor = s.items[0].sequence - 1
	}
}

// ended reports whether the registry says that the stream or session ended at or
// before the cursor, or the log that the stream did: the window may have forgotten.
func (r *reader) ended() bool {
	return r.final != 0 && r.cursor >= r.final || r.cursor >= r.part.endOf(r.place.session, r.place.stream)
}

func (r *reader) gap(reason Reason, certain bool, stream string) gap {
	g := gap{reason: reason, certain: certain, stream: stream, requested: r.given}
	if r.given == "" || r.cursor != r.givenAt {
		g.requested = r.id(r.cursor)
	}
	return g
}

// id returns the text of a position as an event ID of the reader's place.
func (r *reader) id(sequence uint64) string {
	return event.ID{Stream: r.place.stream, Tag: r.tags.tag(r.place.stream), Sequence: sequence}.String()
}

// retag makes IDs in the newest generation, and of the session once it is registered.
func (r *reader) retag(v view) {
	p := r.tags.place
	p.Generation, p.Birth = v.generation, v.birth
	if p.Incarnation == "" {
		rec, _ := r.part.sessions.Session(p.Session)
		p.Incarnation = rec.Incarnation
	}
	if p != r.tags.place {
		r.tags = newTagger(p)
	}
}

// retagBeyond makes IDs in the newest generation of the log when the log itself has
// moved the cursor over the end of what the view shows: a generation that the
// window has not heard of may have begun before there.
func (r *reader) retagBeyond(v view) {
	if r.cursor > v.end {
		state, _ := r.part.log.State(r.part.number)
		r.retag(view{birth: state.Birth, generation: state.Generation().ID})
	}
}

func (r *reader) subject(kind event.Kind, stream string) event.Subject {
	return event.Subject{Partition: r.part.number, Session: r.place.session, Stream: stream, Kind: kind}
}

// wait returns a channel that is closed when there may be something to read.
func (r *reader) wait(s step) <-chan struct{} { return r.part.window.wait(r, s.version) }

// close lets go of the window.
func (r *reader) close() { r.part.window.detach(r.chain) }

// finished reports, without a look at the log, that a client with a cursor has
// everything of a place that has ended.
func (r *reader) finished() bool {
	if r.fresh || len(r.pending) > 0 {
		return false
	}
	v := r.part.window.read(r, limits{events: 1, bytes: 1}, nil)
	if v.rollbacks > r.rollbacks || !v.inside || len(v.items) > 0 || v.lost > r.cursor || r.cursor+1 < v.proved {
		return r.ended()
	}
	return r.ended() || v.closed != 0 && v.through >= v.closed
}

// resumesAt returns the position just before the first event that follows a gap.
func (r *reader) resumesAt(s step) uint64 {
	if s.first > 0 {
		return s.first - 1
	}
	return r.cursor
}
