package janitor

import (
	"context"
	"time"

	"rejoin/shared/eventlog"
)

// barrier is where a tail has to wait, so that the ledger can be compared with a look at
// the log of the same moment.
type barrier struct {
	at     uint64        // the last sequence that may pass
	behind bool          // one behind it waits: everything up to it has been entered
	lifted chan struct{} // closed when there is no barrier, or another one
}

// bar puts up a barrier in place of the one that there is; nil takes it away. The caller
// holds mu.
func (p *partition) bar(b *barrier) {
	if p.barrier != nil {
		close(p.barrier.lifted)
	}
	p.barrier = b
}

// halt waits while a barrier is before a sequence. The caller holds mu.
func (p *partition) halt(sequence uint64) {
	for p.barrier != nil && sequence > p.barrier.at {
		p.barrier.behind = true
		p.progress()
		lifted := p.barrier.lifted
		p.mu.Unlock()
		<-lifted
		p.mu.Lock()
	}
}

// compareWithin bounds a comparison, in which the tail waits.
const compareWithin = 2 * time.Second

// matches reports whether the ledger has as many entries as the log at the same
// sequence. Whatever was deleted unheard is one too many in the ledger, and nothing is
// taken out that is still there: so equal numbers are the same entries.
func (p *partition) matches(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, compareWithin)
	defer cancel()
	p.mu.Lock()
	epoch := p.ledger.epoch
	p.bar(&barrier{at: p.ledger.through, lifted: make(chan struct{})})
	p.mu.Unlock()
	defer p.with(func(*ledger) { p.bar(nil) })
	state, err := p.log.Look(ctx, p.number)
	if err != nil {
		return false
	}
	there := &barrier{at: state.Last, lifted: make(chan struct{})}
	p.with(func(*ledger) { p.bar(there) })
	if !p.await(ctx, func(l *ledger) bool { return l.through >= state.Last || there.behind || state.First > state.Last }) {
		return false
	}
	ok := false
	p.with(func(l *ledger) {
		ok = l.epoch == epoch && l.complete && l.through <= state.Last && l.followed(state, l.through) &&
			l.entries(state, p.now()) == state.Events
	})
	return ok
}

// entries returns how many entries the ledger has from a state's first sequence on,
// those that are doomed and not deleted yet among them.
func (l *ledger) entries(s eventlog.State, now time.Time) uint64 {
	l.advance(s.First)
	n := len(l.strays)
	for _, a := range l.accounts {
		for _, st := range a.streams {
			l.expire(a, st, now)
		}
		a.markers = a.drop(a.markers, func(m marker) bool { return m.seq < l.first })
		n += a.marked
	}
	for _, d := range l.doomed {
		if d.seq >= l.first {
			n++
		}
	}
	return uint64(n + l.totals.events) //nolint:gosec // not negative
}

// maxAside is how many spans are set aside one by one; more are taken together.
const maxAside = 4096

// setAside keeps what was attributed while another janitor may have deleted something.
func (d *doubts) setAside(settled []span) {
	if !d.standby || len(settled) == 0 {
		return
	}
	d.aside = append(d.aside, settled...)
	if len(d.aside) > maxAside {
		d.aside = []span{{d.aside[0].from, d.aside[len(d.aside)-1].to}}
	}
}

// inherit attributes what was missed while another janitor acted, given how far that one
// has trimmed each session.
func (l *ledger) inherit(trims map[string]uint64) {
	d := &l.doubts
	for name, upTo := range trims {
		past := largest(d.aside, upTo)
		if past == 0 {
			continue
		}
		a := l.account(name)
		a.maybe = max(a.maybe, past)
		d.trims = max(d.trims, a.maybe)
		for _, s := range a.streams {
			s.maybe = max(s.maybe, largest(d.aside, min(upTo, s.oldest()-1)))
		}
	}
	d.aside, d.standby = nil, false
	if len(d.missing) > 0 && trims != nil {
		d.past = trims // settle does the rest
	}
}

// takeOver makes sure, at the beginning of a term, that the ledger knows of everything
// that other janitors have deleted: it is compared with the log, or begins anew.
func (p *partition) takeOver(ctx context.Context) {
	p.mu.Lock()
	sure, begun := p.sure, p.ledger.birth != ""
	if sure {
		p.ledger.inherit(nil)
	}
	p.mu.Unlock()
	if sure || !begun {
		return
	}
	ok := p.matches(ctx)
	if ctx.Err() != nil {
		return // the next one who acts does it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || !p.ledger.complete {
		p.logger.Info("the ledger of a standby is not the log; it begins anew", "partition", p.number)
		p.drop()
		return
	}
	p.ledger.inherit(p.trims.of(p.number, p.ledger.birth))
	p.sure = true
}

// theirs notes that another janitor has deleted something, perhaps.
func (p *partition) theirs() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sure = false
	if p.inCharge() != nil {
		p.logger.Warn("another janitor has acted meanwhile; the ledger begins anew", "partition", p.number)
		p.drop()
	}
}

// resign notes that another janitor may delete from now on.
func (p *partition) resign() {
	p.with(func(l *ledger) { l.doubts.standby = true })
}
