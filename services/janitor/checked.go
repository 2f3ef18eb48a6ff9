package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
)

const (
	// checkEvery is how often the checker sees whether there is anything to note. Looks at a
	// partition come every two seconds, and edges wait for --ledger-patience.
	checkEvery = 250 * time.Millisecond
	// checkAgain is how long it waits after an attempt that failed.
	checkAgain = time.Second
	// checkWithin bounds one attempt.
	checkWithin = 5 * time.Second
	// maxAbsent is how many sequences a leader is asked to list at most: that takes 0.2 s and is a
	// message of 8 MB, and holds up a publish by 8 ms (nats-server 2.15, measured).
	maxAbsent = 1 << 20
)

// checker has the log say what is missing of each partition without an explanation, as far as
// its generation and its leader are concerned. Edges need to know it also while no janitor is
// there.
type checker struct {
	partitions []*partition
	logger     *slog.Logger
}

// run works until ctx ends. A partition that has no leader holds up no other one.
func (c *checker) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range c.partitions {
		wg.Go(func() { c.follow(ctx, p) })
	}
	wg.Wait()
}

func (c *checker) follow(ctx context.Context, p *partition) {
	complained := false
	for pause := checkEvery; natsconn.Pause(ctx, pause); {
		err := p.noteChecked(ctx)
		if pause = checkEvery; err != nil {
			pause = checkAgain
		}
		failed := err != nil && !errors.Is(err, errMoved)
		if failed && !complained && ctx.Err() == nil {
			c.logger.Warn("cannot find out whether a partition is damaged; it is tried again", "partition", p.number, "error", err)
		}
		complained = failed
	}
}

// noteChecked has the log say that all of the partition was read in its generation, and up
// to which sequence entries are missing that nothing explains: of the ledger, and in a cluster of
// the server that leads. The error is errMoved when that cannot be told at the moment.
func (p *partition) noteChecked(ctx context.Context) error {
	state, _ := p.log.State(p.number)
	generation, damaged, known := "", uint64(0), false
	p.with(func(l *ledger) {
		if n := len(l.generations); n > 0 && l.exact() && p.compared(state) {
			generation, damaged, known = l.generations[n-1].ID, l.damaged, true
		}
	})
	switch {
	case !known || generation != state.Generation().ID:
		return nil
	case state.Checked() && damaged <= state.Damaged:
		return nil
	case state.Leader == "" && p.log.Clustered(): // an election is not over
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	if state.Leader != "" {
		compare := p.listLeader
		if state.Absent() > maxAbsent {
			compare = p.countLeader
		}
		var err error
		if state, damaged, err = compare(ctx); err != nil {
			return err
		}
	}
	if err := stillActing(ctx); err != nil {
		return err
	}
	return p.log.SetChecked(ctx, p.number, state, damaged)
}

// listLeader compares the ledger with the files of the server that leads. The ledger has read
// those of any server that holds the partition, and each of them may be damaged by itself. It
// returns a look at that server, and the newest sequence that the ledger or the server lacks
// without an explanation.
func (p *partition) listLeader(ctx context.Context) (state eventlog.State, damaged uint64, err error) {
	asOf, epoch := uint64(0), 0
	p.with(func(l *ledger) { asOf, epoch = l.through, l.epoch })
	state, absent, err := p.log.Absent(ctx, p.number)
	if err != nil {
		return state, 0, err
	}
	// What is deleted was announced before: when the ledger has come to where the log ended then, it
	// knows everything that explains the list.
	p.await(ctx, func(l *ledger) bool { return l.epoch != epoch || l.through >= state.Last })
	var found damage
	known := false
	p.with(func(l *ledger) {
		if l.epoch != epoch || !l.exact() || !l.followed(state, asOf) || !l.heardOf(state.Generation().ID) || !p.compared(state) || l.through < state.Last {
			err = errMoved
			return
		}
		found, known = l.lacking(absent), p.lacking == state.Leader
		l.damaged = max(l.damaged, found.to)
		if damaged = l.damaged; found.n > 0 {
			p.lacking = state.Leader
		}
	})
	if found.n > 0 && !known {
		p.logger.Warn("the server that leads a partition lacks entries that others have; every stream may have lost events up to the last of them",
			"partition", p.number, "leader", state.Leader, "from", found.from, "to", found.to, "entries", found.n)
	}
	return state, damaged, err
}

// countLeader is listLeader for a partition of which too much is deleted for a list: the server
// has everything when it has as many entries as the ledger. The error says that it has not, or that
// something is being deleted.
func (p *partition) countLeader(ctx context.Context) (state eventlog.State, damaged uint64, err error) {
	balance, epoch := uint64(0), 0
	p.with(func(l *ledger) { balance, epoch = l.balance(), l.epoch })
	whole := false
	err = p.check(ctx, func(s eventlog.State, l *ledger) {
		whole = l.epoch == epoch && l.exact() && l.heardOf(s.Generation().ID) && l.has(s, balance)
		state, damaged = s, l.damaged
	})
	if err == nil && !whole {
		err = fmt.Errorf("its leader has %d entries, others than the ledger, and %d sequences without one are too many to list", state.Events, state.Absent())
	}
	return state, damaged, err
}

// balance returns how many entries the ledger has, less its sequence, modulo 2^64: it stays the
// same when entries are stored, and falls with each one that is removed.
func (l *ledger) balance() uint64 { return l.entries() - l.through }

// has reports whether the files of a leader have as many entries as the ledger, given its balance
// before the look. A ledger that lacks some itself cannot tell: the leader may have those and lack
// others.
func (l *ledger) has(s eventlog.State, balance uint64) bool {
	return l.damaged < l.first && s.First == l.first && s.Events == balance+s.Last
}

// lacking returns what the ledger has of some sequences, which are in order.
func (l *ledger) lacking(absent []uint64) (d damage) {
	if len(absent) == 0 {
		return d
	}
	l.expireAll()
	note := func(seq uint64) {
		if contains(absent, seq) {
			d.include(seq)
		}
	}
	for _, a := range l.accounts {
		for _, s := range a.streams {
			for _, e := range s.events {
				note(e.seq)
			}
		}
	}
	for _, c := range l.controls.list {
		note(c.seq)
	}
	for _, seq := range l.unlisted {
		note(seq)
	}
	return d
}
