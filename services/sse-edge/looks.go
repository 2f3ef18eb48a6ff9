package edge

import (
	"context"
	"sync"

	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
)

// looks lets readers that look at the partition's leader at about the same time share
// one look, and one question for the marks of their streams. What was read before the
// look is judged by it, so a look serves only those who came before it began: who
// comes while one is under way shares the next one.
type looks struct {
	base   context.Context //nolint:containedctx // of the edge: looks end with it
	log    *eventlog.Log
	ledger *ledger
	number int
	work   sync.WaitGroup

	mu   sync.Mutex
	busy bool
	next *look // of those who wait; nil when nobody does
}

// look is one look at a partition's leader.
type look struct {
	places []marks.Place // whose marks are asked for behind it
	index  map[place]int // where in places each is

	state eventlog.State
	err   error
	done  chan struct{} // closed when state and err are there

	marks []marks.PlaceMark
	none  error         // why there are no marks
	asked chan struct{} // closed when marks and none are there
}

// after returns the result of a look that begins after the call.
func (l *looks) after(ctx context.Context) (eventlog.State, error) {
	return l.join(nil).wait(ctx)
}

// marksOf returns the marks of a stream, asked for behind a look that begins after
// the call, in which the partition must be as far as v: its error is errBehind else.
// Other errors are those of [marks.Ask] and of the log.
func (l *looks) marksOf(ctx context.Context, at place, v view) (marks.PlaceMark, error) {
	mine := l.join(&at)
	state, err := mine.wait(ctx)
	if err != nil {
		return marks.PlaceMark{}, err
	}
	if err := behind(state, v.birth, v.generation); err != nil {
		return marks.PlaceMark{}, err
	}
	select {
	case <-mine.asked:
	case <-ctx.Done():
		return marks.PlaceMark{}, ctx.Err()
	}
	if mine.none != nil {
		return marks.PlaceMark{}, mine.none
	}
	return mine.marks[mine.index[at]], nil
}

// join takes part in the next look.
func (l *looks) join(at *place) *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &look{index: map[place]int{}, done: make(chan struct{}), asked: make(chan struct{})}
	}
	if at != nil {
		if _, there := l.next.index[*at]; !there {
			l.next.index[*at] = len(l.next.places)
			l.next.places = append(l.next.places, marks.Place{Session: at.session, Stream: at.stream})
		}
	}
	if !l.busy {
		l.busy = true
		l.work.Go(l.run)
	}
	return l.next
}

func (k *look) wait(ctx context.Context) (eventlog.State, error) {
	select {
	case <-k.done:
		return k.state, k.err
	case <-ctx.Done():
		return eventlog.State{}, ctx.Err()
	}
}

// run looks for as long as somebody waits.
func (l *looks) run() {
	for {
		l.mu.Lock()
		now := l.next
		if l.next = nil; now == nil {
			l.busy = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(l.base, openTimeout)
		now.state, now.err = l.log.Look(ctx, l.number)
		cancel()
		close(now.done)
		if now.err == nil && len(now.places) > 0 {
			l.work.Go(func() { l.ask(now) })
		}
	}
}

// ask asks for the marks that a look is waited for.
func (l *looks) ask(k *look) {
	defer close(k.asked)
	ctx, cancel := context.WithTimeout(l.base, openTimeout)
	defer cancel()
	for from := 0; from < len(k.places) && k.none == nil; from += marks.MaxPlaces {
		req := question(l.number, k.state)
		req.Places = k.places[from:min(from+marks.MaxPlaces, len(k.places))]
		var reply marks.Reply
		reply, k.none = l.ledger.ask(ctx, req)
		k.marks = append(k.marks, reply.Places...)
	}
}
