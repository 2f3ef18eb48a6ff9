package janitor

import (
	"cmp"
	"errors"
	"time"

	"rejoin/services/janitor/follow"

	"rejoin/services/janitor/ledger"

	"rejoin/shared/eventlog"
)

// askPatience is how long a request for a sweep waits until one begins: the one
// before may have much to delete.
const askPatience = 10 * time.Second

// errNoSweep is returned when no sweep begins within askPatience: another one runs,
// or this janitor does not sweep.
var errNoSweep = errors.New("no sweep begins")

// ask asks the sweeper for a sweep: it is where the answer comes.
type ask chan swept

// swept is what came of a sweep.
type swept struct {
	removed map[ledger.Reason]int   // announced by the sweep
	left    map[eventlog.Reason]int // announced, and not deleted yet
	took    time.Duration
	err     error // the sweep is left unfinished
}

// others returns who else asks at the moment: one sweep is good for all who asked before
// it began.
func (w *sweeper) others() (all []ask) {
	for {
		select {
		case a := <-w.asks:
			all = append(all, a)
		default:
			return all
		}
	}
}

// sweepNow has the sweeper sweep, and returns what came of it.
func (w *sweeper) sweepNow(patience time.Duration) swept {
	a := make(ask, 1)
	select {
	case w.asks <- a:
		return <-a
	case <-time.After(patience):
		return swept{err: errNoSweep}
	}
}

// maxRemovals is how many removals a dry run lists.
const maxRemovals = 1000

// dryRun is what a sweep would remove now.
type dryRun struct {
	total    map[ledger.Reason]int
	removals []ledger.RemovalInfo // the largest
	more     bool                 // there are more than these
}

// dryRun asks the policy what a sweep would remove, and removes nothing.
func (w *sweeper) dryRun() dryRun {
	total := map[ledger.Reason]int{}
	f := ledger.Firsts[planned]{N: maxRemovals, Compare: comparePlanned}
	for _, p := range w.partitions {
		now := p.Now()
		p.With(func(l *ledger.Ledger) {
			for r := range w.removals(l, now) {
				total[r.Reason] += len(r.Sequences)
				f.Add(planned{ledger.RemovalOf(r), p})
			}
		})
	}
	all, more := f.All()
	d := dryRun{total, make([]ledger.RemovalInfo, 0, len(all)), more}
	for _, one := range all {
		d.removals = append(d.removals, one.withID())
	}
	return d
}

// planned is a removal of a dry run.
type planned struct {
	ledger.RemovalInfo
	partition *follow.Partition
}

// comparePlanned puts the largest first.
func comparePlanned(a, b planned) int {
	return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Reason, b.Reason))
}

func (d planned) withID() ledger.RemovalInfo {
	if d.IsOfEvents() {
		d.partition.With(func(l *ledger.Ledger) { d.UpTo = l.ID(d.Session, d.Life, d.Stream, d.Last) })
	}
	return d.RemovalInfo
}
