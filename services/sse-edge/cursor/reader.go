package cursor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
)

// Reader is a subscriber's cursor, with the evidence that was found on the way
// to it. It is used by one goroutine.
//
// Replay and tail are the same: Next returns the events after the cursor, out of
// the window or out of the log, and a gap where events should have followed that
// no longer exist. No event is sent twice, because the cursor only moves over
// returned events; none is skipped silently, because each step was proved
// complete, or reports a gap.
type Reader struct {
	part  *Partition
	Place window.Place
	// bound says that the life is the one that the client may read, or that the log has just named. life says how
	// it was known when the reader was opened.
	bound bool
	life  life
	window.ChainCursor
	limit window.Limits
	// Authorize reports whether a client that waits for a session may read the life that has begun: of a life that
	// it may not read, the client receives the end alone. Nil: it may, or the reader has a life.
	Authorize func(ctx context.Context, life string) (bool, error)
	// Hold is called before a step keeps so many bytes of the log, which belong to no window; without it
	// they are kept. If it returns false, Next returns [ErrNoMemory].
	Hold func(bytes int) bool
	// Await counts so many bytes as soon as there is memory for them, before an event that is larger than a step
	// is read again: such a read is shared with few. Its errors are temporary. Nil: Next returns ErrNoMemory.
	Await func(ctx context.Context, bytes int) error

	// Fresh means that the client has no usable cursor: nothing before the first event that it gets
	// counts as missed.
	Fresh bool
	Came  Arrival // where the client began
	// sent is the newest event that this reader has returned for the client; 0 if it is not known.
	sent uint64
	// provenTo is the window's end when evidence last showed that the window lacks
	// nothing after the cursor.
	provenTo uint64
	// cleared holds, for reads below the window, the newest clear in the log by
	// stream; "" is the session's.
	cleared map[string]uint64
	// asked is the sequence up to which every trim was stored before the log was asked for the removals after a
	// cursor below the window; 0 before the first time. askedFirst is the oldest sequence that the log held then.
	asked, askedFirst uint64

	// end is the sequence at which the place ended, when that was found in the log or reached: until
	// an event follows. seekEnd says that a roll-back may have taken the end from the window, so that a read
	// below the window has to look for it.
	end     uint64
	seekEnd bool

	// toldDamage is the sequence up to which damage of the log was reported; doubted says
	// that a gap was reported although damage was not certain.
	toldDamage uint64
	doubted    bool
	// toldForgotten says that a gap was reported because the log has forgotten the life.
	toldForgotten bool

	// given is the client's own text of the cursor, while the cursor is givenAt.
	given   string
	givenAt uint64

	Tags    Tagger
	Pending []Gap // found before the first read
	items   []window.Item
}

// Arrival is where a client began. Its zero value is from the start.
type Arrival uint8

// Where a reader began: at the oldest event, at the end of the log, at a cursor in the window, or
// at one below it.
const (
	FromStart Arrival = iota
	FromNow
	FromWindow
	FromLog
)

// Step is the result of one call of Next.
type Step struct {
	Gaps  []Gap
	Items []window.Item
	// Changes are those of the members of a [Group] before the items.
	Changes []Change
	// First is the sequence of the first item that was found, shown to the client or not; 0
	// when there was none.
	First uint64
	// jumpEnd is where the last jump of the tail had ended when the window was read.
	jumpEnd uint64
	// More: the window holds more than one step may carry.
	More bool
	// Ended: no event can follow any more.
	Ended bool
}

// Change is a member's new state.
type Change struct {
	Place window.Place
	State MemberState
}

// MemberState is the state of a member, as clients receive it.
type MemberState string

// The states of a member: it is followed; it has ended; there is no such session, or the client
// may not read it. A pattern is full when more open sessions match than there is room for.
const (
	MemberOpen    MemberState = "open"
	MemberClosed  MemberState = "closed"
	MemberUnknown MemberState = "unknown"
	MemberFull    MemberState = "full"
)

// add adds a gap. One of the same stream and reason is the continuation of the first.
func (s *Step) add(g Gap) {
	at := slices.IndexFunc(s.Gaps, func(there Gap) bool { return there.Stream == g.Stream && there.Reason == g.Reason })
	if at < 0 {
		s.Gaps = append(s.Gaps, g)
		return
	}
	s.Gaps[at].Certain = s.Gaps[at].Certain || g.Certain
}

// Gap returns the one gap that an error names: the first that is certain, or else the first. It begins
// where the first one does, and is about all streams when others are of other streams. There must be one.
func (s *Step) Gap() Gap {
	g := s.Gaps[max(slices.IndexFunc(s.Gaps, func(g Gap) bool { return g.Certain }), 0)]
	g.Requested = s.Gaps[0].Requested
	if slices.ContainsFunc(s.Gaps, func(other Gap) bool { return other.Stream != g.Stream }) {
		g.Stream = ""
	}
	return g
}

// found enters the items of a read, for the client.
func (r *Reader) found(s *Step, items []window.Item) {
	s.Items = items
	if n := len(items); n > 0 {
		s.First, r.sent = items[0].Sequence, items[n-1].Sequence
	}
}

// unsent notes that the events that were read after the cursor do not reach the client.
func (r *Reader) unsent() {
	if r.sent > r.Cursor {
		r.sent = 0 // the newest sent event before it is not known any more
	}
}

// Empty reports whether the step has no event, gap, change or end.
func (s Step) Empty() bool {
	return len(s.Gaps) == 0 && len(s.Items) == 0 && len(s.Changes) == 0 && !s.Ended
}

// ErrNoMemory is returned when [Reader.Hold] returns false, or [Group.Hold] does and nothing awaits memory.
var ErrNoMemory = errors.New("there is no memory for events of the log")

// errReadAgain is returned within Next when the window must be read again.
var errReadAgain = errors.New("read again")

// Next returns the events after the cursor, with gaps, and advances the cursor past them; an empty step
// when there are none now. The cursor moves back only with a gap, after a roll-back. Errors are those of
// the log.
func (r *Reader) Next(ctx context.Context) (Step, error) {
	s := Step{Gaps: r.Pending}
	r.Pending = nil
	begun := time.Now()
	for {
		v := r.part.window.Read(&r.ChainCursor, r.limit, r.items)
		r.items = v.Items
		err := r.step(ctx, v, &s)
		if err == nil && s.More && s.Empty() {
			err = errReadAgain // all events of the read are removed, and there are more
		}
		if errors.Is(err, errReadAgain) || waitToRetry(ctx, begun, err) {
			continue
		}
		if err != nil {
			r.Pending = s.Gaps // to be reported at the next attempt
			return Step{}, err
		}
		r.Fresh = false // from here on the client has a usable cursor
		s.Ended = s.Ended || len(s.Items) == 0 && r.ended()
		return s, nil
	}
}

// Quick is Next for the usual case, which takes one read of the window; otherwise it returns false and
// changes nothing.
func (r *Reader) Quick(memory []window.Item) (s Step, _ []window.Item, ok bool) {
	if r.Fresh || len(r.Pending) > 0 {
		return Step{}, memory, false
	}
	v := r.part.window.Read(&r.ChainCursor, r.limit, memory)
	if v.Forks > r.Forks || len(v.Losses) > 0 || !v.Inside || r.unproved(v) || r.unauthorized(v) {
		return Step{}, v.Items, false
	}
	r.adopt(v)
	r.take(v, &s)
	s.Ended = s.Ended || len(s.Items) == 0 && r.ended()
	return s, v.Items, true
}

// unauthorized reports whether the session has begun and the client may not read it as far as is known.
func (r *Reader) unauthorized(v window.View) bool { return r.Authorize != nil && v.Life != "" }

// unproved reports whether the window may lack events after the cursor.
func (r *Reader) unproved(v window.View) bool {
	return r.Cursor+1 < v.JumpEnd && r.provenTo+1 < v.JumpEnd
}

// take takes the items of a view and moves the cursor past them.
func (r *Reader) take(v window.View, s *Step) {
	if n := len(v.Items); n > 0 && v.Items[n-1].Sequence > r.end {
		r.end = 0 // the log decides: the stream continues
	}
	r.found(s, r.keep(v.Items))
	if len(r.Dropped) > 0 { // up to the cursor before this step: it may move back there
		maps.DeleteFunc(r.Dropped, func(_ string, upTo uint64) bool { return upTo <= r.Cursor })
	}
	r.Cursor, r.LastNumber = max(r.Cursor, v.Through), v.LastNumber
	s.More, s.jumpEnd = v.More, v.JumpEnd
	if s.Ended = v.EndedAt != 0 && r.Cursor >= v.EndedAt && !v.More; s.Ended {
		r.end = v.EndedAt
	}
}

func (r *Reader) step(ctx context.Context, v window.View, s *Step) error {
	if v.Forks > r.Forks {
		r.rolledBack(v, s)
		return errReadAgain
	}
	if r.unauthorized(v) {
		may, err := r.Authorize(ctx, v.Life)
		if s.Ended = err == nil && !may; !may {
			return err
		}
		r.Authorize = nil
	}
	r.adopt(v)
	if moved := r.skip(s, v.Losses...); moved {
		return errReadAgain
	}
	if !v.Inside {
		return r.below(ctx, v, s)
	}
	if r.unproved(v) {
		if err := r.prove(ctx, v, s); err != nil {
			return err
		}
	}
	r.take(v, s)
	return nil
}

// rolledBack moves the cursor back to the newest sequence that the log has in common with its earlier state. The
// client receives a gap, since it may have an event ID of the cursor; it is certain if the client was sent an event
// that is lost.
func (r *Reader) rolledBack(v window.View, s *Step) {
	if r.Cursor > v.Common {
		if !r.Fresh {
			s.add(r.gap(ReasonRolledBack, r.sent > v.Common, r.Place.Stream))
		}
		r.Cursor = v.Common
		r.unsent()
	}
	maps.DeleteFunc(r.Dropped, func(_ string, upTo uint64) bool { return upTo > v.Common })
	if r.end > v.Common {
		r.end = 0
	}
	r.Forks, r.provenTo, r.LastNumber, r.cleared, r.asked, r.askedFirst, r.seekEnd = v.Forks, 0, 0, nil, 0, 0, true
}

// drop notes that a stream's events up to a sequence are removed, or all streams' when stream is
// empty, and reports whether it moved the cursor: the removal of one stream's events does not move
// a flow's cursor, since other streams' events lie there.
func (r *Reader) drop(stream string, upTo uint64) (moved bool) {
	if stream == "" || r.Place.Stream != "" {
		r.Cursor = max(r.Cursor, upTo)
		return true
	}
	if r.Dropped == nil {
		r.Dropped = map[string]uint64{}
	}
	r.Dropped[stream] = max(r.Dropped[stream], upTo)
	return false
}

// keep returns the items that are not removed.
func (r *Reader) keep(items []window.Item) []window.Item {
	if len(r.Dropped) == 0 && (len(items) == 0 || items[0].Sequence > r.Cursor) {
		return items
	}
	return slices.DeleteFunc(items, func(it window.Item) bool { return it.Sequence <= r.DroppedTo(it.Stream) })
}

// GoBack moves the cursor to the end of the items that a client was sent of a step; see cut of delivery's outbox.
func (r *Reader) GoBack(s Step, told int) {
	switch {
	case told > len(s.Items):
	case told > 0:
		r.Cursor, r.LastNumber = s.Items[told-1].Sequence, s.Items[told-1].Number
		r.sent = r.Cursor
	case len(s.Items) > 0:
		r.Cursor = s.Items[0].Sequence - 1
		r.unsent()
	}
}

// ended reports whether the place was found to have ended at or before the cursor, when
// the window does not show the end any more.
func (r *Reader) ended() bool { return r.end != 0 && r.Cursor >= r.end }

func (r *Reader) gap(reason GapReason, certain bool, stream string) Gap {
	g := Gap{Reason: reason, Certain: certain, Stream: stream, Requested: r.given}
	if r.given == "" || r.Cursor != r.givenAt {
		g.Requested = r.ID(r.Cursor)
	}
	return g
}

// skipsLifeSinceID reports whether the session's name had a life between the client's event ID and the life that is
// read. An ID of a time at which there was no session fits every life.
func (r *Reader) skipsLifeSinceID() bool {
	newest, _ := r.part.window.Session(r.Place.Session)
	return r.given != "" && newest.Life == r.Place.Life && max(newest.BeforeBegan, newest.Others) > r.givenAt
}

// missed is the gap of a reader that may have missed events before its cursor.
func (r *Reader) missed(stream string) Gap {
	g := r.gap(ReasonUnknown, false, stream)
	g.ResumesAt = r.ID(r.Cursor)
	return g
}

// ID returns the text of a position as an event ID of the reader's place.
func (r *Reader) ID(sequence uint64) string {
	return event.ID{Stream: r.Place.Stream, Tag: r.Tags.Tag(r.Place.Stream), Sequence: sequence}.String()
}

// adopt makes IDs in the window's newest generation, and of the session's life once it has one. A newer
// generation of the log does not count, also for a cursor that is ahead of the window: the window has yet
// to find out whether the log still has the entries there.
func (r *Reader) adopt(v window.View) {
	p := r.Tags.parts
	p.Generation, p.Origin, p.Life = v.Generation, v.Origin, v.Life
	r.Place.Life = v.Life
	if p != r.Tags.parts {
		r.Tags = NewTagger(p)
	}
}

// Renew takes over changes of the partition's generations and of the session's life since the last read.
func (r *Reader) Renew() {
	v := r.part.window.Read(&r.ChainCursor, window.Limits{Events: 1, Bytes: 1}, nil)
	if v.Forks > r.Forks {
		s := Step{Gaps: r.Pending}
		r.rolledBack(v, &s)
		r.Pending = s.Gaps
	}
	if !r.unauthorized(v) {
		r.adopt(v)
	}
}

// Subject returns the subject of an entry in the life that the reader follows.
func (r *Reader) Subject(kind event.Kind, stream string) event.Subject {
	return event.Subject{Partition: r.part.number, Session: r.Place.Session, Life: r.Place.Life, Stream: stream, Kind: kind}
}

// Changed returns a channel that is closed at the next change of the place.
func (r *Reader) Changed() <-chan struct{} { return r.part.window.Changed(r.Chain) }

// Close releases the window, and the partition.
func (r *Reader) Close() {
	r.part.window.Detach(r.Chain)
	if r.part.of != nil {
		r.part.release()
	}
}

// Finished reports, without a request to the log, that a client with a cursor has
// everything of a place that has ended.
func (r *Reader) Finished() bool {
	if r.Fresh || len(r.Pending) > 0 {
		return false
	}
	v := r.part.window.Read(&r.ChainCursor, window.Limits{Events: 1, Bytes: 1}, nil)
	if v.Forks > r.Forks || !v.Inside || len(v.Items) > 0 || len(v.Losses) > 0 || r.Cursor+1 < v.JumpEnd {
		return r.ended()
	}
	return r.ended() || v.EndedAt != 0 && v.Through >= v.EndedAt
}

// ResumesAt returns the position just before the first event that follows a gap.
func (r *Reader) ResumesAt(s Step) uint64 {
	if s.First > 0 {
		return s.First - 1
	}
	return r.Cursor
}

// MoveTo moves the cursor to that of another reader of the same place.
func (r *Reader) MoveTo(sequence uint64) {
	r.Cursor, r.provenTo, r.LastNumber, r.asked = sequence, 0, 0, 0
	r.unsent()
}

// HasEnd reports whether the stream has an end, wherever the cursor is.
func (r *Reader) HasEnd() bool { return r.endAt() != 0 }

// CameAtEnd reports whether the stream had ended at the client's event ID, or before it.
func (r *Reader) CameAtEnd() bool {
	end := r.endAt()
	return r.given != "" && end != 0 && end <= r.givenAt
}

// endAt returns the sequence of the stream's end; 0 when it has none.
func (r *Reader) endAt() uint64 {
	if at := r.part.window.EndOf(r.Chain); at != 0 {
		return at
	}
	return r.end
}

// Kept is nothing: unsent events are read again.
func (r *Reader) Kept() int { return 0 }

// Key is the same for readers that can share one listener.
func (r *Reader) Key() *window.Chain { return r.Chain }

// Follows reports whether the reader's place is of a session.
func (r *Reader) Follows(session string) bool { return r.Place.Session == session }

// CursorID returns the cursor as an event ID; empty while a gap has to be reported first.
func (r *Reader) CursorID() string {
	if len(r.Pending) > 0 {
		return ""
	}
	return r.ID(r.Cursor)
}

// At returns the cursor.
func (r *Reader) At(string) uint64 { return r.Cursor }

// Listen has changes of the stream wake a listener.
func (r *Reader) Listen(l window.Listener) { r.part.window.Listen(r.Chain, l) }

// Unlisten ends Listen.
func (r *Reader) Unlisten(l window.Listener) { r.part.window.Unlisten(r.Chain, l) }

// Release drops the memory of the last step.
func (r *Reader) Release() { r.items = nil }

// InMemory returns a reader of a window alone, whose partition has no log.
func InMemory(w *window.Window, at window.Place, cursor uint64) *Reader {
	return &Reader{part: &Partition{window: w}, Place: at, limit: window.Limits{Events: 1000, Bytes: 1 << 20}, ChainCursor: window.ChainCursor{Chain: w.Attach(at, false, 0).Chain, Cursor: cursor}, Tags: NewTagger(event.TagParts{})}
}
