package cursor

import (
	"context"
	"errors"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// Start says where a subscriber begins.
type Start struct {
	// After is the client's event ID; empty when it has none.
	After string
	// Now, without an ID, leaves out the retained events.
	Now bool
	// NewStream says that nothing was ever published to the stream: its name is new.
	NewStream bool
	// Since, without an ID, leaves out the events stored before it; zero for none.
	Since time.Time
	// Last, without an ID, leaves out all but so many of the newest events; 0 for nothing.
	Last int
	// At is the cursor to begin with, without any of the above; it may be 0. With Continues the subscriber
	// has everything up to it, and events removed after it are a gap. Without, nothing before the first
	// event is missed.
	At        uint64
	Continues bool

	// look is one at the partition's leader, which is not looked at again for a cursor ahead of the window; or nil.
	look *eventlog.State
	of   *life // the result of [Partition.lifeAt]; nil if it was not called
	// seeksEnd has the log asked for the end of the life if the window has yet to reach the cursor.
	seeksEnd bool
}

// Open returns a reader at a subscriber's cursor, to be closed by the caller. The first reader of a
// partition waits until its window has caught up with the log.
// Errors are errNotReady and those of the log and the registry, all of which are temporary.
func (ps *Partitions) Open(ctx context.Context, at window.Place, from Start, limit window.Limits) (*Reader, error) {
	p := ps.acquire(ps.log.Partition(at.Session))
	defer p.release()
	if err := p.untilReady(ctx); err != nil {
		return nil, err
	}
	r, err := p.open(ctx, at, from, limit)
	if err == nil && r.skipsLifeSinceID() {
		r.Pending = append(r.Pending, r.missed(at.Stream))
	}
	return r, err
}

// open returns a reader, of a partition that the caller has acquired and whose window has caught up once;
// see [Partitions.Open].
func (p *Partition) open(ctx context.Context, at window.Place, from Start, limit window.Limits) (*Reader, error) {
	for begun := time.Now(); ; {
		if err := p.readyAgain(ctx); err != nil {
			return nil, err
		}
		r, err := p.tryOpen(ctx, at, from, limit)
		if !waitToRetry(ctx, begun, err) {
			return r, err
		}
		from.of, from.look = nil, nil // a roll-back may have taken the entries that they are of
	}
}

// A reader is bound to one life: the newest that the window knows, from an opening or an event,
// else that of the newest opening in the log. With access control it is the life that the
// caller may read, and no other: the window learns it from the log if it knows another one, which
// would count as the later one. Chains that wait for a session take the first life that becomes known.
func (p *Partition) tryOpen(ctx context.Context, at window.Place, from Start, limit window.Limits) (*Reader, error) {
	of, err := from.of, error(nil)
	if of == nil {
		of, err = p.lifeAt(ctx, at.Session, at.Life, 0)
	}
	if err != nil {
		return nil, err
	}
	r := &Reader{part: p.of.acquire(p.number), Place: at, bound: from.of != nil || at.Life != "", limit: limit}
	a := r.attach(*of)
	err = errOtherGeneration // it was rolled back a moment ago
	if a.CaughtUp {
		err = r.start(ctx, from, a)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	if from.After != "" {
		if r.Came = FromWindow; r.Cursor+1 < p.window.Extent().Start {
			r.Came = FromLog
		}
	}
	return r, nil
}

// attach holds the chain of the reader's place in a life.
func (r *Reader) attach(of life) window.Attachment {
	r.Place.Life, r.life = of.token, of
	a := r.part.window.Attach(r.Place, of.found, of.began)
	r.Place.Life, r.Chain, r.Forks = a.Life, a.Chain, a.Forks
	r.Tags = NewTagger(event.TagParts{Origin: a.Origin, Generation: a.Generation, Session: r.Place.Session, Life: a.Life})
	return a
}

// start sets the cursor of a new subscriber.
func (r *Reader) start(ctx context.Context, from Start, a window.Attachment) error {
	switch {
	case from.After != "":
		if err := r.resume(ctx, from, a); err != nil {
			return err
		}
	case from.Continues:
		r.Cursor = from.At
	case from.Now:
		r.Cursor, r.provenTo, r.Came = a.End, a.End, FromNow
	case !from.Since.IsZero():
		at, err := r.part.startAt(ctx, from.Since)
		if err != nil {
			return err
		}
		r.Fresh, r.Cursor = true, at
	case from.Last > 0:
		before, err := r.beforeNewest(ctx, from.Last)
		if err != nil {
			return err
		}
		r.Fresh, r.Cursor = true, before
	default:
		r.Fresh, r.Cursor = true, from.At
	}
	if !from.NewStream && (a.Unknown || from.seeksEnd && r.Place.Life != "" && r.part.isBehind(r.Cursor)) {
		return r.findEnd(ctx)
	}
	return nil
}

// startAt returns the sequence after which all entries were stored at a time or later. The search reads
// events.
func (p *Partition) startAt(ctx context.Context, since time.Time) (uint64, error) {
	give, err := takeOne(ctx, p.of.wholeEvents)
	if err != nil {
		return 0, err
	}
	defer give()
	at, err := p.log.SequenceAt(ctx, p.number, since)
	return at - min(at, 1), err
}

// resume sets the cursor to an event ID, or reports a gap.
//
// An ID of a generation that was lost does not show where that generation began. Its client gets
// rolled_back also when all events that it had received are still there, if these lie after the start
// of the first generation after the origin: it gets some events twice and loses none.
func (r *Reader) resume(ctx context.Context, from Start, a window.Attachment) error {
	text := from.After
	id, err := event.ParseID(text)
	if err != nil {
		r.begin(text)
		return nil //nolint:nilerr // what cannot be read is no error but a gap
	}
	verdict, common := event.Resolve(id, r.tagParts(), a.Gens)
	last := a.End
	if verdict != event.Good || id.Sequence > a.End {
		// The ID may be newer than the generation and the life that this edge knows:
		// another edge was faster, or the log has lost entries that it showed.
		if verdict, common, last, err = r.resolveAgain(ctx, id, from.look, a); err != nil {
			return err
		}
	}
	switch verdict {
	case event.Unknown:
		r.begin(text)
	case event.RolledBack, event.MaybeRolledBack:
		r.Pending = []Gap{{Reason: ReasonRolledBack, Certain: verdict == event.RolledBack, Stream: r.Place.Stream, Requested: text}}
		r.Fresh, r.Cursor = common == 0, common
	case event.Good:
		r.Cursor, r.given, r.givenAt = id.Sequence, text, id.Sequence
		if id.Sequence > last {
			r.Pending = []Gap{{Reason: ReasonRolledBack, Certain: true, Stream: r.Place.Stream, Requested: text}}
			r.Cursor = last
		}
	}
	return nil
}

// resolveAgain asks the log itself. It also returns the partition's last sequence, at least
// the window's end.
func (r *Reader) resolveAgain(ctx context.Context, id event.ID, look *eventlog.State, a window.Attachment) (_ event.Verdict, common, last uint64, _ error) {
	if look == nil {
		state, err := r.part.askLeader(ctx)
		if verdict, _ := event.Resolve(id, r.tagParts(), state.Generations); err == nil && verdict == event.Good {
			state, err = lookUntil(ctx, state, id.Sequence, r.part.askLeader)
		}
		if err != nil {
			return event.Unknown, 0, 0, err
		}
		look = &state
	}
	state := *look
	if err := sameGeneration(state, a.Extent); err != nil {
		return event.Unknown, 0, 0, err
	}
	if !r.bound && !r.life.found {
		of, err := r.part.fetchLife(ctx, r.Place.Session)
		if err != nil {
			return event.Unknown, 0, 0, err
		}
		if of.token != r.Place.Life {
			r.part.window.Detach(r.Chain)
			before := r.Forks // a roll-back since then concerns the state that was looked up before it
			r.attach(of)
			r.Forks = before
		}
	}
	p := r.tagParts()
	p.Origin = state.Origin
	verdict, common := event.Resolve(id, p, state.Generations)
	if verdict == event.Good {
		r.Tags = NewTagger(p)
	}
	if verdict == event.Unknown && r.bound { // to the life of a registry copy, which may be an earlier one than the ID's
		of, err := r.part.fetchLife(ctx, r.Place.Session)
		p.Life = of.token
		if now, _ := event.Resolve(id, p, state.Generations); err == nil && now != event.Unknown {
			err = errNotReady
		}
		if err != nil {
			return event.Unknown, 0, 0, err
		}
	}
	last = max(state.Last, a.End)
	if verdict == event.Good && id.Sequence > last && !state.Quorum {
		return event.Unknown, 0, 0, errNoQuorum
	}
	return verdict, common, last, nil
}

func (r *Reader) tagParts() event.TagParts {
	p := r.Tags.parts
	p.Stream = r.Place.Stream
	return p
}

// begin starts at the oldest retained event, after a gap: the requested cursor is not known.
func (r *Reader) begin(requested string) {
	r.Fresh, r.Cursor = true, 0
	r.Pending = []Gap{{Reason: ReasonUnknown, Certain: true, Stream: r.Place.Stream, Requested: requested}}
}

// About returns the fields of the first event on a connection. While the log does not answer, or too many clients
// ask it, a stream whose events may lie below the window counts as one that exists: clients take false for "nothing
// was ever published".
func (r *Reader) About(ctx context.Context) (exists bool, oldest *string) {
	sequence, whole := r.part.window.OldestOf(r.Chain)
	unanswered := false
	if (!whole || sequence == 0 && r.part.isBehind(r.Cursor)) && r.Place.Stream != "" {
		var err error
		sequence, err = r.first(ctx)
		unanswered = err != nil && !errors.Is(err, eventlog.ErrNotFound)
	}
	if sequence != 0 {
		id := r.ID(sequence)
		oldest = &id
	}
	if r.Place.Stream == "" {
		return r.Place.Life != "" || sequence != 0, oldest
	}
	return sequence != 0 || unanswered, oldest
}

// errManyAsk is returned when a reconnecting client would have to wait to learn which event is the oldest.
var errManyAsk = errors.New("others ask for whole events now")

// first returns the sequence of the oldest retained event of the reader's stream. A client that resumes does
// not wait for others: many resume at once, and then read together. Errors are those of the log, and errManyAsk.
func (r *Reader) first(ctx context.Context) (uint64, error) {
	whole, client := r.part.of.wholeEvents, clientOf(ctx)
	if r.Came == FromWindow || r.Came == FromLog {
		if !whole.Take(client, 1) {
			return 0, errManyAsk
		}
	} else if err := whole.Wait(ctx, client, 1); err != nil {
		return 0, err
	}
	defer whole.Give(client, 1)
	return r.part.log.First(ctx, r.Subject(event.Message, r.Place.Stream), 1)
}

// Transient reports whether an error is temporary.
func Transient(err error) bool {
	return errors.Is(err, errNotReady) || errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrNotFound) ||
		errors.Is(err, session.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
