package edge

import (
	"context"
	"errors"
	"time"

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
}

// open returns a reader at a subscriber's place, to be closed by the caller.
// Errors are errNotReady and those of the log and the registry, all of which pass.
func (p *partition) open(ctx context.Context, at place, from start, limit limits) (*reader, error) {
	for begun := time.Now(); ; {
		r, err := p.tryOpen(ctx, at, from, limit)
		if !catchesUp(ctx, begun, err) {
			return r, err
		}
	}
}

func (p *partition) tryOpen(ctx context.Context, at place, from start, limit limits) (*reader, error) {
	if !p.window.stats().ready {
		return nil, errNotReady
	}
	rec, _ := p.sessions.Session(at.session)
	a := p.window.attach(at, rec.Incarnation)
	r := &reader{
		part: p, place: at, chain: a.chain, limit: limit, rollbacks: a.rollbacks,
		tags: newTagger(event.Place{Birth: a.birth, Generation: a.gens[len(a.gens)-1].ID, Session: at.session, Incarnation: rec.Incarnation}),
	}
	switch {
	case from.after != "":
		if err := r.resume(ctx, from.after, a); err != nil {
			r.close()
			return nil, err
		}
	case from.now:
		r.cursor, r.provenTo, r.came = a.end, a.end, fromNow
	default:
		r.fresh = true
	}
	return r, nil
}

// resume finds the place that an event ID points at, or a gap.
func (r *reader) resume(ctx context.Context, text string, a attachment) error {
	id, err := event.ParseID(text)
	if err != nil {
		r.begin(ReasonUnknown, text)
		return nil //nolint:nilerr // what cannot be read is no error but a gap
	}
	verdict, common := event.Resolve(id, r.tagPlace(), a.gens)
	last := a.end
	if verdict != event.Good || id.Sequence > a.end {
		// The ID may be newer than what this edge has heard of generation and session:
		// another edge was faster, or the log has lost what it showed.
		if verdict, common, last, err = r.resolveAnew(ctx, id, a); err != nil {
			return err
		}
	}
	switch {
	case verdict == event.Unknown:
		r.begin(ReasonUnknown, text)
		return nil
	case verdict == event.RolledBack && common == 0:
		r.begin(ReasonRolledBack, text)
		return nil
	case verdict == event.RolledBack:
		r.pending = []gap{{reason: ReasonRolledBack, certain: true, stream: r.place.stream, requested: text}}
		r.cursor = common
		return nil
	}
	r.cursor, r.given, r.givenAt = id.Sequence, text, id.Sequence
	if id.Sequence <= a.end && a.unknown {
		return r.findFinal(ctx)
	}
	if id.Sequence > last {
		r.pending = []gap{{reason: ReasonRolledBack, certain: true, stream: r.place.stream, requested: text}}
		r.cursor = last
	}
	return nil
}

// resolveAnew asks the log and the registry themselves. It also returns the
// partition's last sequence, at least the window's end.
func (r *reader) resolveAnew(ctx context.Context, id event.ID, a attachment) (_ event.Verdict, common, last uint64, _ error) {
	state, err := r.part.log.Look(ctx, r.part.number)
	if err != nil {
		return event.Unknown, 0, 0, err
	}
	if err := behind(state, a.birth, a.gens[len(a.gens)-1].ID); err != nil {
		return event.Unknown, 0, 0, err
	}
	rec, err := r.part.sessions.Get(ctx, r.place.session, "")
	if err != nil && !errors.Is(err, session.ErrNotFound) {
		return event.Unknown, 0, 0, err
	}
	p := r.tagPlace()
	p.Birth, p.Incarnation = state.Birth, rec.Incarnation
	verdict, common := event.Resolve(id, p, state.Generations)
	if verdict == event.Good {
		r.tags = newTagger(p) // the copy of the registry may be behind
	}
	return verdict, common, max(state.Last, a.end), nil
}

func (r *reader) tagPlace() event.Place {
	p := r.tags.place
	p.Stream = r.place.stream
	return p
}

// begin starts at the oldest retained event, behind a gap.
func (r *reader) begin(reason Reason, requested string) {
	r.fresh, r.cursor = true, 0
	r.pending = []gap{{reason: reason, certain: true, stream: r.place.stream, requested: requested}}
}

// about is what the first event on a connection tells.
func (r *reader) about(ctx context.Context) (exists bool, oldest *string) {
	_, registered := r.part.sessions.Session(r.place.session)
	sequence, whole := r.part.window.oldestOf(r.chain)
	switch {
	case whole || r.place.stream == "":
	case r.oldestKnown:
		sequence = r.oldest
	default:
		first, err := r.part.log.First(ctx, r.subject(event.Message, r.place.stream), 1)
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
	if r.place.stream == "" {
		return registered || sequence != 0, oldest
	}
	return sequence != 0, oldest
}

// passing reports whether an error is trouble that will pass.
func passing(err error) bool {
	return errors.Is(err, errNotReady) || errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrNotFound) ||
		errors.Is(err, session.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
