package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// shared is a model of janitors that share partitions: the leases are a table, and all receive every
// write to the bucket at once.
type shared struct {
	now     time.Duration
	holders []string
	all     map[string]*sharing
	moves   int // how often a partition was given back
}

func (m *shared) ids() (ids []string) {
	for id := range m.all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (m *shared) count(id string) (n int) {
	for _, by := range m.holders {
		if by == id {
			n++
		}
	}
	return n
}

// round is a quarter of a lease.
func (m *shared) round() {
	m.now += testLease / waitShare
	now := moment(m.now)
	for _, id := range m.ids() {
		s := m.all[id]
		for _, other := range m.ids() {
			s.hear(other, now)
		}
		for p, by := range m.holders {
			if m.all[by] != nil {
				s.held(p, by, now)
			}
		}
		give := s.surplus(m.count(id), now)
		for p := len(m.holders) - 1; p >= 0 && give > 0; p-- {
			if m.holders[p] == id {
				m.holders[p], give = "", give-1
				m.moves++
				for _, other := range m.all {
					other.held(p, "", now)
				}
			}
		}
	}
	for p := range m.holders {
		for _, id := range m.ids() {
			if by := m.holders[p]; (by == "" || m.all[by] == nil) && m.all[id].wants(p, m.count(id), now) {
				m.holders[p] = id // the lease of a stopped one is over, or will be
			}
		}
	}
}

func (m *shared) join(t *rapid.T) {
	id := fmt.Sprint("j", rapid.IntRange(0, 1<<30).Draw(t, "id"))
	s := newSharing(id, len(m.holders), testLease)
	s.forget(moment(m.now))
	m.all[id] = &s
}

// Whichever janitors start and stop, all partitions have one soon, and all janitors have about as many.
func TestSharing_Converges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.IntRange(1, 20).Draw(t, "partitions")
		m := &shared{holders: make([]string, partitions), all: map[string]*sharing{}}
		m.join(t)
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			switch ids := m.ids(); {
			case rapid.Bool().Draw(t, "joins"):
				m.join(t)
			case len(ids) > 1:
				delete(m.all, rapid.SampledFrom(ids).Draw(t, "leaves"))
			}
			for range rapid.IntRange(0, 12).Draw(t, "rounds") {
				m.round()
			}
		}
		for range 5 * waitShare { // until stopped janitors are forgotten, and new ones have settled
			m.round()
		}
		for range partitions {
			m.round()
		}
		n := len(m.all)
		least, most := partitions/n, (partitions+n-1)/n
		for p, by := range m.holders {
			if m.all[by] == nil {
				t.Fatalf("nobody holds partition %d", p)
			}
		}
		for id := range m.all {
			if has := m.count(id); has < least || has > most {
				t.Fatalf("one of %d janitors holds %d of %d partitions", n, has, partitions)
			}
		}
		before := m.moves
		for range 3 * waitShare {
			m.round()
		}
		if m.moves != before {
			t.Fatal("partitions move while nobody comes or goes")
		}
		// One that joins gets its share, and no other partition moves.
		m.join(t)
		for range 3*waitShare + partitions {
			m.round()
		}
		if moved, share := m.moves-before, (partitions+n)/(n+1); moved > share {
			t.Fatalf("%d partitions moved for one that gets %d", moved, share)
		}
	})
}

func TestSharing_AfterReconnection(t *testing.T) {
	s := newSharing("a", 2, testLease)
	s.forget(moment(0))
	s.answers(moment(0))
	if !s.wants(0, 0, moment(0)) || !s.wants(1, 0, moment(0)) {
		t.Error("at first it does not want all that nobody holds")
	}
	s.held(0, "a", moment(0))
	s.held(1, "b", moment(0))
	s.held(0, "", moment(1))
	s.forget(moment(testLease - time.Second))
	s.answers(moment(testLease))
	if !s.wants(0, 0, moment(testLease)) || s.wants(1, 0, moment(testLease+returning-1)) {
		t.Error("it does not want what it held before alone")
	}
	if !s.wants(1, 1, moment(testLease+returning)) {
		t.Error("it leaves to the other what that does not take")
	}
}

func TestRanges(t *testing.T) {
	for text, numbers := range map[string][]int{"": nil, "3": {3}, "0-15": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, "0-1, 3, 5-7": {0, 1, 3, 5, 6, 7}} {
		if got := Ranges(numbers); got != text {
			t.Errorf("%v are %q, want %q", numbers, got, text)
		}
	}
}
