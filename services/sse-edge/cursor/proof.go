package cursor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
)

// A reader proves from the log alone that nothing is missing after its cursor. Events that
// are deleted were announced by a trim after them, or lie below the first sequence of the
// partition; any other missing entry is damage, which a janitor finds after each start of
// the partition's server.
//
//	cursor                          removed                              damaged
//	in the window, tail saw all     nothing                              nothing
//	in the window, below a jump     trims in the window, or the floor    the partition's state
//	below the window                trims, floor and birth in the log    the partition's state

// prove finds out whether events are missing after a cursor that lies in the window, but
// below a jump of the tail. The error errAgain means that the view must be read again.
func (r *Reader) prove(ctx context.Context, v window.View, s *Step) error {
	state, err := r.part.afterJump(ctx, v.Extent)
	if err != nil {
		return err
	}
	if v.End < state.Last {
		return errReadAgain // it may lack trims that the window has by now
	}
	// The window has the entries that the tail received without a jump, also those below the present floor.
	first := min(state.First, v.JumpEnd)
	switch {
	case r.Cursor+1 >= first:
	case r.Fresh:
		r.Cursor = first - 1
		return errReadAgain
	default:
		_, moved, err := r.skipRemoved(ctx, v, v.JumpEnd, s)
		if err != nil {
			return err
		}
		if moved {
			return errReadAgain
		}
	}
	sure, err := r.reportDamaged(ctx, v, v.Items, s)
	if sure {
		r.provenTo = v.End
	}
	return err
}

// skipRemoved asks the log for the removals after the cursor. It returns the look of the
// answer, and whether the cursor was moved over removed events. held is the sequence from
// which on the window has everything; 0 when it does not count.
//
// Trims are read after the page, and the look at the leader follows them: the trim of an event
// that the read should have found lies after the event, and the floor may pass a trim in between.
func (r *Reader) skipRemoved(ctx context.Context, v window.View, held uint64, s *Step) (_ eventlog.State, moved bool, _ error) {
	release := func() {}
	if r.Place.Stream == "" { // the trims of a flow are read with a consumer
		give, err := takeOne(ctx, r.part.of.scans)
		if err != nil {
			return eventlog.State{}, false, err
		}
		release = sync.OnceFunc(give)
	}
	defer release()
	look := func(ctx context.Context, _ int) (eventlog.State, error) {
		release() // it may wait for the window
		return r.part.looks.after(ctx, v.Extent)
	}
	all, state, err := r.part.log.LossesAfter(ctx, look, r.Place.Session, r.Place.Life, r.Place.Stream, r.Cursor, held)
	if err != nil {
		return eventlog.State{}, false, err
	}
	return state, r.skip(s, all...), nil
}

// skip drops the removed events, and reports them to a client that may have seen earlier ones.
// It returns whether the cursor was moved.
func (r *Reader) skip(s *Step, losses ...eventlog.Loss) (moved bool) {
	slices.SortStableFunc(losses, func(a, b eventlog.Loss) int { return strings.Compare(b.Stream, a.Stream) }) // losses of all streams come last
	for _, l := range losses {
		if l.UpTo <= r.DroppedTo(l.Stream) {
			continue
		}
		if !r.Fresh {
			s.add(r.gap(reasonOf(l.Reason), l.Certain, l.Stream))
		}
		moved = r.drop(l.Stream, l.UpTo) || moved
	}
	return moved
}

// reportDamaged reports, once, entries after the cursor that are missing without an explanation. Some may
// be missing when no janitor has read the partition since its server started, or came to lead it. sure
// is true when the partition was checked, or the client knows that it is uncertain.
func (r *Reader) reportDamaged(ctx context.Context, v window.View, items []window.Item, s *Step) (sure bool, _ error) {
	if r.Fresh && len(items) == 0 {
		return true, nil
	}
	checked, err := r.checked(ctx, v)
	if err != nil {
		return false, err
	}
	if r.damaged(items) {
		s.add(r.gap(ReasonDamaged, false, r.Place.Stream))
	}
	switch {
	case checked || r.doubted:
		return true, nil
	case r.Fresh:
		return false, nil
	}
	r.doubted = true
	doubt := r.gap(ReasonDamaged, false, r.Place.Stream)
	doubt.Unchecked = true
	s.add(doubt)
	return true, nil
}

// damaged reports, once, whether entries are missing after the cursor without an explanation: they may
// have been of any stream.
func (r *Reader) damaged(items []window.Item) bool {
	state, _ := r.part.log.State(r.part.number) // a look at the leader has followed the read
	from := r.Cursor
	if r.Fresh {
		from = items[0].Sequence
	}
	if from >= state.Damaged || r.toldDamage >= state.Damaged {
		return false
	}
	r.toldDamage = state.Damaged
	return true
}

// checked reports whether a janitor has read the partition since its server started, and
// waits for that as long as the patience allows.
func (r *Reader) checked(ctx context.Context, v window.View) (bool, error) {
	p := r.part
	if r.doubted {
		return false, nil
	}
	state, _ := p.log.State(p.number)
	if state.Checked() {
		return p.patience.observe(state), nil
	}
	for { // the state seen last may be some seconds old
		state, err := p.looks.after(ctx, v.Extent)
		if err != nil {
			return false, err
		}
		if p.patience.observe(state) {
			return state.Checked(), nil
		}
		if !natsconn.Pause(ctx, checkAgain) {
			return false, ctx.Err()
		}
	}
}

// checkAgain is how often readers look whether a partition was checked meanwhile.
const checkAgain = 50 * time.Millisecond
