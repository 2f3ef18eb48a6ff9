package edge

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
)

// ledger asks the janitor which events were removed. When no janitor answers it
// waits for one, but not longer than patience since it went missing: a janitor
// that restarts makes nobody uncertain, one that is gone holds nobody up.
type ledger struct {
	nc       *nats.Conn
	patience time.Duration

	mu      sync.Mutex
	missing time.Time // since when nobody answers; zero when somebody does
	failed  time.Time // when nobody answered last
}

const askAgain = 50 * time.Millisecond

// ask asks the janitor. Errors are errBehind and those of [marks.Ask].
func (l *ledger) ask(ctx context.Context, req marks.Request) (marks.Reply, error) {
	for {
		askCtx, cancel := context.WithTimeout(ctx, marks.AskTimeout)
		reply, err := marks.Ask(askCtx, l.nc, req)
		cancel()
		if err == nil {
			l.answered(true)
			if reply.Generation != "" && reply.Generation != req.Generation {
				return marks.Reply{}, errBehind // the partition has begun another one since the look
			}
			return reply, nil
		}
		if time.Since(l.answered(false)) > l.patience || ctx.Err() != nil {
			return marks.Reply{}, err
		}
		select {
		case <-ctx.Done():
			return marks.Reply{}, ctx.Err()
		case <-time.After(askAgain):
		}
	}
}

// answered notes whether somebody answered and returns since when nobody does. When
// nobody was asked for long enough, there may have been a janitor in between.
func (l *ledger) answered(yes bool) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case yes:
		l.missing = time.Time{}
	case l.missing.IsZero() || now.Sub(l.failed) > l.patience+marks.AskTimeout:
		l.missing, l.failed = now, now
	default:
		l.failed = now
	}
	return l.missing
}

// table holds the marks of a whole partition, asked for once after a backfill or
// an interruption, so that a storm of resumes asks nothing. It is good for what
// lies below the proved floor that it was made for: above it nothing was missed.
type table struct {
	proved    uint64
	rollbacks int
	reply     marks.Reply
	sessions  map[string][]marks.StreamMark
}

func newTable(proved uint64, rollbacks int, reply marks.Reply) *table {
	t := &table{proved: proved, rollbacks: rollbacks, reply: reply, sessions: map[string][]marks.StreamMark{}}
	for _, m := range reply.Marks {
		t.sessions[m.Session] = append(t.sessions[m.Session], m)
	}
	return t
}

// of returns the marks of a session.
func (t *table) of(session string) marks.Reply {
	return marks.Reply{Through: t.reply.Through, Default: t.reply.Default, Marks: t.sessions[session]}
}

// tables keeps the newest table of a partition and lets one caller at a time fetch it.
type tables struct {
	mu      sync.Mutex
	current *table
	busy    *fetching // nil when no fetch is under way
}

// fetching is a fetch under way.
type fetching struct {
	done chan struct{}
	err  error // set before done is closed; nil also when its caller gave it up
}

// get returns the table for a proved floor, and fetches it when nobody has. Who waited
// for a fetch that failed does not try again: a janitor that hangs would cost each one
// a time-out after the other.
func (t *tables) get(ctx context.Context, proved uint64, rollbacks int, fetch func(context.Context) (marks.Reply, error)) (*table, error) {
	for {
		t.mu.Lock()
		if c := t.current; c != nil && c.proved == proved && c.rollbacks == rollbacks {
			t.mu.Unlock()
			return c, nil
		}
		if busy := t.busy; busy != nil {
			t.mu.Unlock()
			select {
			case <-busy.done:
				if busy.err != nil {
					return nil, busy.err
				}
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		mine := &fetching{done: make(chan struct{})}
		t.busy = mine
		t.mu.Unlock()

		reply, err := fetch(ctx)

		t.mu.Lock()
		if err == nil {
			t.current = newTable(proved, rollbacks, reply)
		} else if ctx.Err() == nil {
			mine.err = err
		}
		close(mine.done)
		t.busy = nil
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// The questions below are asked with the last sequence of a look that follows what
// was read, and not just with the end of that: an event that came later may have
// pushed out one that the read should have found, and a ledger that has not come to
// the one does not know of the other.

// marksOfWindow returns the marks of a session for cursors that lie in the window
// v was taken of, but below its proved floor. The error is errBehind when the log is
// not in the generation of that window.
func (p *partition) marksOfWindow(ctx context.Context, session string, v view) (marks.Reply, error) {
	t, err := p.tables.get(ctx, v.proved, v.rollbacks, func(ctx context.Context) (marks.Reply, error) {
		state, err := p.log.Look(ctx, p.number)
		if err != nil {
			return marks.Reply{}, err
		}
		if err := behind(state, v.birth, v.generation); err != nil {
			return marks.Reply{}, err
		}
		req := question(p.number, state)
		req.Through = max(v.end, state.Last)
		return p.ledger.ask(ctx, req)
	})
	if err != nil {
		return marks.Reply{}, err
	}
	return t.of(session), nil
}

// marksNow returns the marks of a place at this moment, for what was just read
// from the log up to a sequence. The error is errBehind when the log is not in the
// generation of the window that v was taken of: what was read does not go with it.
func (p *partition) marksNow(ctx context.Context, at place, v view, through uint64) (marks.Reply, error) {
	state, err := p.looks.after(ctx)
	if err != nil {
		return marks.Reply{}, err
	}
	if err := behind(state, v.birth, v.generation); err != nil {
		return marks.Reply{}, err
	}
	req := question(p.number, state)
	req.Session, req.Stream, req.Through = at.session, at.stream, max(through, state.Last)
	return p.ledger.ask(ctx, req)
}

// question asks for marks of a partition as a look has shown it.
func question(partition int, state eventlog.State) marks.Request {
	return marks.Request{
		Partition: partition, Birth: state.Birth, Generation: state.Generation().ID,
		Through: state.Last, First: state.First, Limit: state.Limits.MaxEventsPerStream,
	}
}
