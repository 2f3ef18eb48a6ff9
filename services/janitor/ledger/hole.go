package ledger

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"rejoin/shared/eventlog"
)

// holes are the sequences that the tail passed without an entry and that nothing explains
// yet: no trim has named them, and the floor has not passed them. Trims lie after the entries that
// they remove, so a ledger that begins on an existing log passes many holes that are explained
// later.
type holes struct {
	blocks []holeBlock // in order
	n      int         // sequences in all of them
	empty  int         // blocks without any
}

// holeBlock are the holes among 512 sequences.
type holeBlock struct {
	number uint64 // the first sequence is 512 times this
	bits   [8]uint64
}

const holeBlockSize = 512

func (b *holeBlock) len() (n int) {
	for _, word := range b.bits {
		n += bits.OnesCount64(word)
	}
	return n
}

func (b *holeBlock) sequence(word, bit int) uint64 {
	return b.number*holeBlockSize + uint64(word*64+bit) //nolint:gosec // not negative
}

// add adds sequences, both ends among them, that lie after all others.
func (h *holes) add(from, to uint64) {
	for seq := from; seq <= to; seq++ {
		number, at := seq/holeBlockSize, seq%holeBlockSize
		if last := len(h.blocks) - 1; last < 0 || h.blocks[last].number != number {
			h.blocks = append(h.blocks, holeBlock{number: number})
		}
		h.blocks[len(h.blocks)-1].bits[at/64] |= 1 << (at % 64)
		h.n++
	}
}

// remove takes a sequence out, if it is there.
func (h *holes) remove(seq uint64) {
	number, at := seq/holeBlockSize, seq%holeBlockSize
	i, ok := slices.BinarySearchFunc(h.blocks, number, func(b holeBlock, n uint64) int { return cmp.Compare(b.number, n) })
	if !ok || h.blocks[i].bits[at/64]&(1<<(at%64)) == 0 {
		return
	}
	h.blocks[i].bits[at/64] &^= 1 << (at % 64)
	h.n--
	if h.blocks[i].len() > 0 {
		return
	}
	if h.empty++; h.empty > 64 && h.empty > len(h.blocks)/2 {
		h.blocks = slices.DeleteFunc(h.blocks, func(b holeBlock) bool { return b.len() == 0 })
		h.empty = 0
	}
}

// within reports whether there are any from one sequence to another.
func (h *holes) within(from, to uint64) bool {
	i, _ := slices.BinarySearchFunc(h.blocks, from/holeBlockSize, func(b holeBlock, n uint64) int { return cmp.Compare(b.number, n) })
	for ; i < len(h.blocks); i++ {
		b := &h.blocks[i]
		for word, all := range b.bits {
			for ; all != 0; all &= all - 1 {
				if at := b.sequence(word, bits.TrailingZeros64(all)); at > to {
					return false
				} else if at >= from {
					return true
				}
			}
		}
	}
	return false
}

// takeUpTo removes all holes up to a sequence, and returns them.
func (h *holes) takeUpTo(seq uint64) (d Damage) {
	for len(h.blocks) > 0 && h.blocks[0].number*holeBlockSize <= seq {
		b := &h.blocks[0]
		before := b.len()
		for word := range b.bits {
			for b.bits[word] != 0 {
				at := b.sequence(word, bits.TrailingZeros64(b.bits[word]))
				if at > seq {
					break
				}
				b.bits[word] &= b.bits[word] - 1
				d.include(at)
			}
		}
		switch after := b.len(); {
		case after > 0:
			h.n -= before - after
			return d
		case before == 0:
			h.empty--
		}
		h.n -= before
		h.blocks = h.blocks[1:]
	}
	return d
}

// Damage are entries that are missing and that nothing explains.
type Damage struct {
	From, To uint64
	N        int
}

func (d *Damage) include(seq uint64) {
	if d.N == 0 || seq < d.From {
		d.From = seq
	}
	d.To = max(d.To, seq)
	d.N++
}

// look is a look at the server.
type look struct {
	asOf uint64 // the ledger's sequence when the look began
	last uint64 // the partition's last sequence
}

// miss notes that the tail passed the sequences after the ledger's up to
// another one without an entry.
func (l *Ledger) miss(through uint64, now time.Time) {
	from := max(l.Through+1, l.begunAt)
	if from > through {
		return
	}
	l.since = now
	if from < l.first {
		l.beginAt(l.first)
	}
	if from = max(from, l.first); from <= through {
		l.holes.add(from, through)
	}
}

// explain notes that the floor has removed all entries up to a sequence, or is about to.
func (l *Ledger) explain(upTo uint64) {
	if l.holes.takeUpTo(upTo).N > 0 {
		l.beginAt(upTo + 1)
	}
}

// beginAt has the ledger claim to know no more than one that begins at a sequence: there were entries
// below that it has not seen.
func (l *Ledger) beginAt(first uint64) {
	l.begunAt = first
	for _, o := range l.openings {
		o.Whole = false
	}
	for _, a := range l.Accounts {
		for _, s := range a.Streams {
			s.known = false
		}
	}
}

// WantsLook reports whether a look at the server is needed.
func (l *Ledger) WantsLook() bool { return l.Complete && l.holes.n > 0 && l.look == nil }

// Exact reports whether the ledger is complete and every missing sequence is explained,
// or known to be damage.
func (l *Ledger) Exact() bool { return l.Complete && l.holes.n == 0 }

// Looked enters a look at the server that began when the ledger was at asOf. It ignores a leader
// whose last sequence is before that.
func (l *Ledger) Looked(asOf uint64, s eventlog.State) {
	if !l.IsOf(s) || s.Last < asOf {
		return
	}
	l.Advance(s.First, s.Last)
	l.look = &look{asOf, s.Last}
	l.judgeHoles()
}

// judgeHoles turns the holes from before a look into damage, once the tail has reached the look's
// last sequence: deleted entries had been announced two sync intervals before, so their
// trim lies before that sequence, and purged entries lie below the floor. When
// the tail has missed an entry since the look began, that may be the trim, with all before it below
// a floor that moved since: then another look is needed.
func (l *Ledger) judgeHoles() {
	if l.look == nil || l.Through < l.look.last {
		return
	}
	if !l.holes.within(l.look.asOf+1, l.look.last) {
		if d := l.holes.takeUpTo(l.look.asOf); d.N > 0 {
			l.damage, l.Damaged = append(l.damage, d), max(l.Damaged, d.To)
		}
	}
	l.look = nil
}

// TakeDamage returns the damage that was found since the last call.
func (l *Ledger) TakeDamage() []Damage {
	found := l.damage
	l.damage = nil
	return found
}
