package e2e_test

import (
	"context"
	"errors"
	"strings"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
)

// doubt is when a gap may be uncertain. The log names the missing events of each stream, with
// two exceptions: below the floor it does not name the streams of its events, and while no
// janitor has read a partition since its server was started, entries may be missing without a
// note.
//
// The world's lock guards it.
type doubt struct {
	unread []time.Time // by partition: when it was last seen unread
}

// watchUnread looks all the time whether a janitor has read the partitions. One that was not looked at
// for a second, on a machine that pauses, may have been unread meanwhile.
func (w *world) watchUnread() {
	looked := make([]time.Time, w.sc.settings.Partitions)
	for w.ctx.Err() == nil {
		for p := range looked {
			checked := w.checked(p)
			paused := time.Since(looked[p]) > time.Second
			if looked[p] = time.Now(); checked && !paused {
				continue
			}
			w.mu.Lock()
			w.doubt.unread[p] = time.Now()
			w.mu.Unlock()
		}
		natsconn.Pause(w.ctx, 20*time.Millisecond)
	}
}

// checked reports whether a janitor has read a partition since its server was started.
func (w *world) checked(p int) bool {
	ctx, cancel := context.WithTimeout(w.ctx, time.Second)
	defer cancel()
	state, err := w.own.Log.Look(ctx, p)
	return err == nil && state.Checked()
}

// unreadFor is for how long after a partition was last seen unread an edge may still report that.
func (w *world) unreadFor() time.Duration { return w.sc.patience + 3*time.Second }

// doubtful returns why a gap that an edge has decided on since a moment may be uncertain, or "" when
// it may not, but for the floor. The subscriber may have received the gap long after.
func (w *world) doubtful(p int, since time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt.unread[p].After(since.Add(-w.unreadFor())) {
		return "unread"
	}
	return ""
}

// belowFloor reports whether the partition's oldest entry lies after the one that follows
// a sequence.
func (w *world) belowFloor(ctx context.Context, p int, sequence uint64) bool {
	state, err := patiently(ctx, func(ctx context.Context) (eventlog.State, error) { return w.own.Log.Look(ctx, p) })
	return err == nil && sequence+1 < state.First
}

// checkDoubt makes sure that a gap is not uncertain without a reason; why is the result
// of doubtful when it was received.
func (w *world) checkDoubt(ctx context.Context, s *subscriber, g *toldGap, why string) {
	switch {
	case why != "":
	case w.belowFloor(ctx, w.truth.partition(s.plan.session), g.requested):
		why = "below the floor"
	case ctx.Err() != nil:
		return
	default:
		w.violate("%s: %s: it is not certain, and the log says all that it takes", s, g)
		why = "wrongly"
	}
	w.count("uncertain gap: " + why)
}

// allRead waits until a janitor has read all partitions.
func (w *world) allRead() {
	for p := range w.sc.settings.Partitions {
		if !w.wait(time.Now().Add(checkTime), func() bool { return w.checked(p) }) && w.ctx.Err() == nil {
			w.violate("no janitor reads partition %d", p)
		}
	}
}

// disowned reports whether an ID is of a generation that the log does not know any more.
// An update of a janitor that died may remove one that the next janitor has begun
// meanwhile, and nothing else does (docs/adr/0003).
func (w *world) disowned(at place, text string) bool {
	if !w.sc.has(opRestartNATS) {
		return false
	}
	rec, _ := w.own.Sessions.Session(at.session)
	return w.foreign(at, text, rec.Life, "")
}

// opensAgain reports whether an ID is of a life whose opening a torn block has taken: the log does
// not know that life any more.
func (w *world) opensAgain(at place, text string) bool {
	if !w.sc.has(opTear) {
		return false
	}
	ctx, cancel := context.WithTimeout(w.ctx, 4*time.Second)
	defer cancel()
	opening, err := w.own.Log.Opening(ctx, at.session)
	return errors.Is(err, eventlog.ErrNotFound) || err == nil && w.foreign(at, text, opening.Life)
}

// foreign reports whether an ID is of none of some lives in a generation that the log knows.
func (w *world) foreign(at place, text string, lives ...string) bool {
	id, err := event.ParseID(text)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(w.ctx, 4*time.Second)
	defer cancel()
	state, err := w.own.Log.Look(ctx, w.truth.partition(at.session))
	if err != nil {
		return false
	}
	for _, g := range state.Generations {
		for _, life := range lives {
			if (event.TagParts{Origin: state.Origin, Generation: g.ID, Session: at.session, Life: life, Stream: at.stream}).Tag() == id.Tag {
				return false
			}
		}
	}
	return true
}

// unattended reports whether a service has continued without a janitor, since none came
// for long after a start of the server. When one comes, it may disown the IDs given out
// since, of which no event is lost (docs/adr/0003).
func (w *world) unattended() bool {
	return strings.Contains(w.trace.String(), "no janitor has looked at a partition since its server started")
}
