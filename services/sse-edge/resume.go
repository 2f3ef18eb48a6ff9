package edge

import (
	"context"
	"errors"
	"time"

	"rejoin/services/sse-edge/window"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// errNotReady is returned while a partition has not been tailed yet.
var errNotReady = errors.New("the partition is not ready")

// start says where a subscriber begins.
type start struct {
	// after is the client's event ID; empty when it has none.
	after string
	// now, without an ID, leaves out what is retained.
	now bool
	// fresh says that nothing was ever published to the stream: its name is new.
	fresh bool
}

// open returns a reader at a subscriber's place, to be closed by the caller.
// Errors are errNotReady and those of the log and the registry, all of which pass.
func (p *partition) open(ctx context.Context, at window.Place, from start, limit window.Limits) (*reader, error) {
	for begun := time.Now(); ; {
		r, err := p.tryOpen(ctx, at, from, limit)
		if !catchesUp(ctx, begun, err) {
			return r, err
		}
	}
}

func (p *partition) tryOpen(ctx context.Context, at window.Place, from start, limit window.Limits) (*reader, error) {
	if !p.window.Stats().Ready {
		return nil, errNotReady
	}
	of := life{name: at.Life}
	if at.Life == "" {
		var err error
		if of, err = p.lifeOf(ctx, at.Session); err != nil {
			return nil, err
		}
	}
	r := &reader{part: p, place: at, bound: at.Life != "", limit: limit}
	a := r.attach(of)
	if err := r.start(ctx, from, a); err != nil {
		r.close()
		return nil, err
	}
	if from.after != "" {
		if r.came = fromWindow; r.Cursor+1 < p.window.Stats().Floor {
			r.came = fromLog
		}
	}
	return r, nil
}

// attach holds the chain of the reader's place in a life.
func (r *reader) attach(of life) window.Attachment {
	r.place.Life = of.name
	a := r.part.window.Attach(r.place, of.found, of.opened)
	r.place.Life, r.Chain, r.Rollbacks = a.Life, a.Chain, a.Rollbacks
	r.tags = newTagger(event.Place{Birth: a.Birth, Generation: a.Gens[len(a.Gens)-1].ID, Session: r.place.Session, Life: a.Life})
	return a
}

// start puts the cursor where a subscriber begins.
func (r *reader) start(ctx context.Context, from start, a window.Attachment) error {
	switch {
	case from.after != "":
		if err := r.resume(ctx, from.after, a); err != nil {
			return err
		}
	case from.now:
		r.Cursor, r.provenTo, r.came = a.End, a.End, fromNow
	default:
		r.fresh = true
	}
	if a.Unknown && !from.fresh {
		return r.findEnd(ctx)
	}
	return nil
}

// resume finds the place that an event ID points at, or a gap.
func (r *reader) resume(ctx context.Context, text string, a window.Attachment) error {
	id, err := event.ParseID(text)
	if err != nil {
		r.begin(ReasonUnknown, text)
		return nil //nolint:nilerr // what cannot be read is no error but a gap
	}
	verdict, common := event.Resolve(id, r.tagPlace(), a.Gens)
	last := a.End
	if verdict != event.Good || id.Sequence > a.End {
		// The ID may be newer than what this edge has heard of generation and life:
		// another edge was faster, or the log has lost what it showed.
		if verdict, common, last, err = r.resolveAgain(ctx, id, a); err != nil {
			return err
		}
	}
	lost := verdict == event.RolledBack || verdict == event.Forgotten
	switch {
	case verdict == event.Unknown:
		r.begin(ReasonUnknown, text)
		return nil
	case lost && common == 0:
		r.begin(ReasonRolledBack, text)
		r.pending[0].certain = verdict == event.RolledBack
		return nil
	case lost:
		r.pending = []gap{{reason: ReasonRolledBack, certain: verdict == event.RolledBack, stream: r.place.Stream, requested: text}}
		r.Cursor = common
		return nil
	}
	r.Cursor, r.given, r.givenAt = id.Sequence, text, id.Sequence
	if id.Sequence > last {
		r.pending = []gap{{reason: ReasonRolledBack, certain: true, stream: r.place.Stream, requested: text}}
		r.Cursor = last
	}
	return nil
}

// resolveAgain asks the log itself. It also returns the partition's last sequence, at least
// the window's end.
func (r *reader) resolveAgain(ctx context.Context, id event.ID, a window.Attachment) (_ event.Verdict, common, last uint64, _ error) {
	state, err := r.part.log.Look(ctx, r.part.number)
	if err != nil {
		return event.Unknown, 0, 0, err
	}
	if err := behind(state, a.Birth, a.Gens[len(a.Gens)-1].ID); err != nil {
		return event.Unknown, 0, 0, err
	}
	if !r.bound {
		of, err := r.part.lookUpLife(ctx, r.place.Session)
		if err != nil {
			return event.Unknown, 0, 0, err
		}
		if of.name != r.place.Life {
			r.close()
			r.attach(of)
		}
	}
	p := r.tagPlace()
	p.Birth = state.Birth
	verdict, common := event.Resolve(id, p, state.Generations)
	if verdict == event.Good {
		r.tags = newTagger(p)
	}
	return verdict, common, max(state.Last, a.End), nil
}

func (r *reader) tagPlace() event.Place {
	p := r.tags.place
	p.Stream = r.place.Stream
	return p
}

// begin starts at the oldest retained event, behind a gap.
func (r *reader) begin(reason Reason, requested string) {
	r.fresh, r.Cursor = true, 0
	r.pending = []gap{{reason: reason, certain: true, stream: r.place.Stream, requested: requested}}
}

// about is what the first event on a connection tells.
func (r *reader) about(ctx context.Context) (exists bool, oldest *string) {
	sequence, whole := r.part.window.OldestOf(r.Chain)
	switch {
	case whole || r.place.Stream == "":
	default:
		first, err := r.part.log.First(ctx, r.subject(event.Message, r.place.Stream), 1)
		if err == nil {
			sequence = first
		} else if !errors.Is(err, eventlog.ErrNotFound) {
			sequence = 0
		}
	}
	if sequence != 0 {
		id := r.id(sequence)
		oldest = &id
	}
	if r.place.Stream == "" {
		return r.place.Life != "" || sequence != 0, oldest
	}
	return sequence != 0, oldest
}

// passing reports whether an error is trouble that will pass.
func passing(err error) bool {
	return errors.Is(err, errNotReady) || errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrNotFound) ||
		errors.Is(err, session.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
