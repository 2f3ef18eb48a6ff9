package ledger

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// replica returns a partition that has lost some entries, its state, and its sequences without an entry.
func replica(m *model, lost []uint64) (r *model, state eventlog.State, absent []uint64) {
	damaged := *m
	for _, seq := range lost {
		damaged.delete(seq)
	}
	for seq := damaged.first; seq <= damaged.last; seq++ {
		if _, there := damaged.find(seq); !there {
			absent = append(absent, seq)
		}
	}
	return &damaged, damaged.state(), absent
}

// lose draws up to three entries that a replica has lost: not the newest, and no trim, without
// which more is not explained.
func lose(t *rapid.T, m *model, label string) (lost []uint64) {
	for i := range rapid.IntRange(0, 3).Draw(t, label) {
		if e := rapid.SampledFrom(m.entries).Draw(t, fmt.Sprint(label, i)); e.Sequence < m.last && e.Subject.Kind != event.Trim && !slices.Contains(lost, e.Sequence) {
			lost = append(lost, e.Sequence)
		}
	}
	return lost
}

// A leader has all entries of the ledger, or lacks some of them that nothing explains, whatever
// is stored, announced and deleted while it is asked.
func TestLedger_ComparedWithItsLeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := newModel()
		lim := Limits{MaxPerStream: 2, MaxEvents: -1, MaxBytes: -1, MaxStreams: -1}
		m := newMachine(t, log, lim, Rules{MaxAge: -1, MaxBytes: -1}, 0)
		stream, some := rapid.SampledFrom([]string{"x", "y"}), rapid.Uint64Range(1, 3)
		same := true // nothing is removed meanwhile
		steps := func(label string) {
			for range rapid.IntRange(0, 9).Draw(t, label) {
				switch rapid.IntRange(0, 9).Draw(t, "step") {
				case 0:
					log.open("s")
				case 1:
					log.endStream("s", stream.Draw(t, "stream"))
				case 2:
					m.catchUp()
					m.sweep(9)
				case 3:
					m.delete(t, 3, rapid.Bool().Draw(t, "heard"))
					same = false
				case 4:
					log.purge(min(log.first+some.Draw(t, "entries"), log.last))
					same = false
				case 5:
					m.catchUp()
				case 6: // a trim of a janitor that did not know of those events
					if all := log.history[place{"s", "", "x"}]; len(all) > 0 {
						log.store(eventlog.Entry{Subject: event.Subject{Session: "s", Stream: "x", Kind: event.Trim}, Trim: &eventlog.Trim{Session: "s", Stream: "x", UpTo: all[len(all)-1]}})
					}
				default:
					log.publish("s", stream.Draw(t, "stream"), false)
				}
			}
		}
		log.publish("s", "x", false)
		for range 3 {
			steps("before")
		}
		m.catchUp()
		m.delete(t, 1000, true) // also the entries that were unknown before
		m.catchUp()
		m.sweep(9)
		m.catchUp()
		if same = rapid.IntRange(0, 3).Draw(t, "headless") > 0; !same { // an earlier leader lacked some of the first
			m.ledger.Advance(min(log.first+some.Draw(t, "entries"), log.last), 0)
		}
		read := lose(t, log, "lost by the server that the ledger has read")
		if len(read) > 0 {
			other, _, _ := replica(log, read)
			m = newMachine(t, other, lim, m.rules, 0)
			m.catchUp()
			m.catchUp()
			m.log, same = log, false
		}
		before, tally, asOf := m.ledger.Balance(), m.ledger.Tally(), m.ledger.Through
		steps("while it is asked")
		lost := lose(t, log, "lost")
		_, state, absent := replica(log, lost)
		steps("while it answers")
		m.ledger.Looked(asOf, state)
		damaged, whole := m.ledger.Has(state, before)
		whole = whole && damaged < m.ledger.first
		if m.ledger.Misses(state, tally) && len(lost) == 0 && same {
			t.Fatal("the leader has lost nothing, and misses something")
		}
		named := func(seq uint64) bool {
			return slices.ContainsFunc(log.trims, func(t eventlog.Trim) bool { return contains(t.Listed, seq) })
		}
		// Announced entries that the two lack at different sequences do not show in the number, only in the list.
		if whole && !slices.ContainsFunc(read, named) && slices.ContainsFunc(lost, func(seq uint64) bool { return seq >= m.ledger.first && !slices.Contains(read, seq) }) {
			t.Fatalf("the leader has lost %v, the ledger lacks %v, and the leader has everything", lost, read)
		}
		if !whole && len(lost) == 0 && same {
			t.Fatal("the leader has lost nothing, and lacks something")
		}
		steps("until the ledger is behind the look")
		m.catchUp()
		var want Damage
		for _, seq := range lost {
			if seq >= m.ledger.first && !named(seq) && !slices.Contains(read, seq) {
				want.include(seq)
			}
		}
		if got := m.ledger.Lacking(absent); got != want {
			t.Fatalf("the leader has lost %v, and lacks %+v, want %+v", lost, got, want)
		}
	})
}
