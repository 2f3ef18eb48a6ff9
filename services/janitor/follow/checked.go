package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rejoin/services/janitor/lease"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
)

const (
	// checkEvery is how often the checker sees whether there is anything to note. A
	// partition is looked at every two seconds, and edges wait for --ledger-patience.
	checkEvery = 250 * time.Millisecond
	// checkAgain is how long it waits after an attempt that failed.
	checkAgain = time.Second
	// checkWithin bounds one attempt.
	checkWithin = 5 * time.Second
	// maxAbsent is the default of [Partition.MaxAbsent]: such a list takes 0.2 s and is a message of
	// 8 MB, and holds up a publish by 8 ms (nats-server 2.15, measured).
	maxAbsent = 1 << 20
)

// KeepChecked notes in the partition's metadata, until ctx ends, up to where entries are missing without an
// explanation. Edges read it there, also while no janitor runs. ctx is of a term.
//
// A damaged replica does not repair itself (docs/upstream/0012).
func (p *Partition) KeepChecked(ctx context.Context) {
	complained := false
	for pause := checkEvery; natsconn.Pause(ctx, pause); {
		err := p.noteChecked(ctx)
		if pause = checkEvery; err != nil {
			pause = checkAgain
		}
		failed := err != nil && !errors.Is(err, ErrChanged)
		if failed && !complained && ctx.Err() == nil {
			p.logger.Warn("cannot find out whether a partition is damaged; it is tried again", "partition", p.Number, "error", err)
		}
		complained = failed
	}
}

// noteChecked notes in the log that all of the partition was read in its generation, and up
// to which sequence entries are missing that nothing explains: of the ledger, and in a cluster of
// the server that leads. The error is ErrChanged when that cannot be determined at the moment.
func (p *Partition) noteChecked(ctx context.Context) error {
	state, _ := p.Log.State(p.Number)
	generation, damaged, known, misses, again := "", uint64(0), false, false, false
	p.With(func(l *ledger.Ledger) {
		misses, again = p.misses, p.mustReadAgain(state)
		generation, damaged, known = l.Generation(), l.Damaged, l.Exact() && l.Through >= p.tailed.Last && p.compared(state)
	})
	switch {
	case !known || generation != state.Generation().ID:
		return nil
	case state.Checked() && damaged <= state.Damaged && !misses:
		return nil
	case state.Leader == "" && p.Log.Clustered(): // an election is not over
		return nil
	case again:
		Ring(p.again)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	if state.Leader != "" || misses {
		compare := p.listLeader
		if state.Absent() > p.MaxAbsent {
			compare = p.CountLeader
		}
		var err error
		if state, damaged, err = compare(ctx); err != nil {
			return err
		}
		p.With(func(*ledger.Ledger) { p.misses = false })
	}
	if err := lease.StillActing(ctx); err != nil {
		return err
	}
	return p.Log.SetChecked(ctx, p.Number, state, damaged)
}

// mustReadAgain reports whether another program has deleted entries of a partition that has too many holes for a list:
// the ledger begins again then, and finds them like the ledger of a janitor that starts. Not in a cluster whose leader
// may lack more than the server that the ledger reads from: it would begin again and again. The caller holds mu.
func (p *Partition) mustReadAgain(state eventlog.State) bool {
	return p.misses && state.Absent() > p.MaxAbsent && (state.Leader == "" || state.Checked() && state.Damaged < state.First)
}

// listLeader compares the ledger with the files of the server that leads. The ledger has read
// those of any server that holds the partition, and each of them may be damaged by itself. It
// returns a look at that server, and the newest sequence that the ledger or the server lacks
// without an explanation.
func (p *Partition) listLeader(ctx context.Context) (state eventlog.State, damaged uint64, err error) {
	asOf, restarts := uint64(0), 0
	p.With(func(l *ledger.Ledger) { asOf, restarts = l.Through, l.Restarts })
	state, absent, err := p.Log.Absent(ctx, p.Number)
	if err != nil {
		return state, 0, err
	}
	// Deleted entries were announced before: when the ledger has reached the end that the log had then, it
	// knows all explanations for the list.
	p.Await(ctx, func(l *ledger.Ledger) bool { return l.Restarts != restarts || l.Through >= state.Last })
	var found ledger.Damage
	known := false
	p.With(func(l *ledger.Ledger) {
		if l.Restarts != restarts || !l.Exact() || !l.MatchesAt(state, asOf) || !l.HeardOf(state.Generation().ID) || !p.compared(state) || l.Through < state.Last {
			err = ErrChanged
			return
		}
		found, known = l.Lacking(absent), p.lacking == state.Leader
		l.Damaged = max(l.Damaged, found.To)
		if damaged = l.Damaged; found.N > 0 {
			p.lacking = state.Leader
		}
	})
	// A server that is alone leads nothing: it is asked only when it has fewer entries than before.
	if found.N > 0 && (!known || state.Leader == "") {
		p.logger.Warn("the server that leads a partition lacks entries that others have, or some were deleted by hand; every stream may have lost events up to the last of them",
			"partition", p.Number, "leader", state.Leader, "from", found.From, "to", found.To, "entries", found.N)
	}
	return state, damaged, err
}

// CountLeader is listLeader for a partition with too many deleted entries for a list: the server
// has all entries when it has as many as the ledger. When the ledger lacks some itself, the server may lack any.
// The error says that it has fewer, or that entries are being deleted.
func (p *Partition) CountLeader(ctx context.Context) (state eventlog.State, damaged uint64, err error) {
	balance, restarts := uint64(0), 0
	p.With(func(l *ledger.Ledger) { balance, restarts = l.Balance(), l.Restarts })
	whole := false
	err = p.Check(ctx, func(s eventlog.State, l *ledger.Ledger) {
		state = s
		damaged, whole = l.Has(s, balance)
		whole = whole && l.Restarts == restarts && l.Exact() && l.HeardOf(s.Generation().ID)
	})
	if err == nil && !whole {
		err = fmt.Errorf("its leader has %d entries, others than the ledger, and %d sequences without one are too many to list", state.Entries, state.Absent())
	}
	return state, damaged, err
}
