package event_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rejoin/shared/event"
)

// span are the entries that a partition stored between two starts of its server: all from a
// sequence on, after the remaining entries of the previous span.
type span struct {
	before *span
	from   uint64
}

// shared returns the sequence up to which the histories that end in two spans are the same.
func shared(a, b *span) uint64 {
	of := map[*span]uint64{} // the smallest sequence that a replaced after each span that it grew from
	least := uint64(math.MaxUint64)
	for s := a; s != nil; s = s.before {
		of[s] = least
		least = min(least, s.from)
	}
	least = math.MaxUint64
	for s := b; s != nil; s = s.before {
		if behind, ok := of[s]; ok {
			return min(least, behind) - 1
		}
		least = min(least, s.from)
	}
	return 0
}

// partition is a model of a partition: the data on its disk.
type partition struct {
	span        *span
	last        uint64
	generations []event.Generation
}

// made is an event ID, and the span in which it was made.
type made struct {
	id         event.ID
	generation string
	span       *span
}

// A cursor with the verdict Good names events that the partition still has, after any roll-back:
// of its end, or of all of it with its list of generations, to any earlier moment.
func TestResolve_Rollbacks(t *testing.T) {
	place := event.TagParts{Origin: "birth", Session: "s", Life: "l", Stream: "t"}
	rapid.Check(t, func(t *rapid.T) {
		restarts := rapid.IntRange(1, 10_000).Draw(t, "restarts")
		often := rapid.IntRange(1, 50).Draw(t, "one roll-back in")
		seed := rapid.Uint64().Draw(t, "seed")
		rnd := rand.New(rand.NewPCG(seed, 0))
		now := partition{span: &span{from: 1}, generations: []event.Generation{{ID: "birth", Start: 1}}}
		copies := []partition{now}
		var ids []made
		check := func(m made) {
			for _, g := range now.generations {
				p := place
				p.Generation = g.ID
				if g.ID != m.generation && p.Tag() == m.id.Tag {
					return // four characters are alike by chance: one in 1.7 million
				}
			}
			verdict, common := event.Resolve(m.id, place, now.generations)
			same := shared(m.span, now.span)
			known := event.HasGeneration(now.generations, m.generation)
			if verdict == event.Good && (m.id.Sequence > same || !known) || verdict != event.Good && known && common > same || common > m.id.Sequence || verdict == event.Unknown {
				t.Fatalf("%d of generation %s is %d, in common up to %d; the same up to %d; generations %v", m.id.Sequence, m.generation, verdict, common, same, now.generations)
			}
			if m.generation == now.generations[len(now.generations)-1].ID && verdict != event.Good {
				t.Fatalf("%d of the newest generation is %d", m.id.Sequence, verdict)
			}
		}
		for n := range restarts {
			for range rnd.IntN(3) {
				now.last += rnd.Uint64N(20)
				if n == 0 || rnd.IntN(1+restarts/100) == 0 {
					p := place
					p.Generation = now.generations[len(now.generations)-1].ID
					m := made{event.ID{Stream: "t", Tag: p.Tag(), Sequence: rnd.Uint64N(now.last + 1)}, p.Generation, now.span}
					check(m)
					ids = append(ids, m)
				}
				if rnd.IntN(1+restarts/20) == 0 {
					copies = append(copies, now)
				}
			}
			if rnd.IntN(often) == 0 {
				switch rnd.IntN(10) {
				case 0:
					now.last = rnd.Uint64N(now.last + 1)
				case 1, 2, 3, 4, 5:
					now.last -= min(now.last, rnd.Uint64N(30))
				default:
					now = copies[rnd.IntN(len(copies))]
				}
			}
			now.span = &span{before: now.span, from: now.last + 1}
			now.generations = event.NextGenerations(now.generations, event.Generation{ID: "g" + strconv.Itoa(n), Start: now.last + 1})
			if len(now.generations) > event.MaxGenerations || now.generations[0].ID != "birth" {
				t.Fatalf("%d generations from %s on", len(now.generations), now.generations[0].ID)
			}
			if len(ids) > 0 && rnd.IntN(1+restarts/50) == 0 {
				check(ids[rnd.IntN(len(ids))])
			}
		}
		for _, m := range ids {
			check(m)
		}
	})
}

func TestNextGenerations_ListIsFull(t *testing.T) {
	generations := []event.Generation{{ID: "birth", Start: 1}, {ID: "a", Start: 10}, {ID: "b", Start: 30}, {ID: "c", Start: 20}}
	for n := len(generations); n < event.MaxGenerations; n++ {
		generations = append(generations, event.Generation{ID: strconv.Itoa(n), Start: 100})
	}
	before := slices.Clone(generations)
	for _, want := range []event.Generation{{ID: "b", Start: 10}, {ID: "c", Start: 10}, {ID: "4", Start: 10}} {
		next := event.NextGenerations(generations, event.Generation{ID: "new", Start: 200})
		if len(next) != event.MaxGenerations || next[0].ID != "birth" || next[1] != want || next[len(next)-1].Start != 200 {
			t.Errorf("%v", next)
		}
		if !slices.Equal(generations, before) {
			t.Fatal("the list that it was given has changed")
		}
		generations, before = next, slices.Clone(next)
	}
	// No ID of a generation that was merged is good.
	place := event.TagParts{Origin: "birth", Generation: "a", Session: "s", Stream: "t"}
	for sequence, want := range map[uint64]event.Verdict{9: event.MaybeRolledBack, 10: event.MaybeRolledBack, 1000: event.MaybeRolledBack} {
		if got, common := event.Resolve(event.ID{Stream: "t", Tag: place.Tag(), Sequence: sequence}, place, generations); got != want || common != 9 {
			t.Errorf("%d: %d, in common up to %d", sequence, got, common)
		}
	}
}

func TestKeepGenerations(t *testing.T) {
	list := func(text string) (all []event.Generation) {
		for i, id := range strings.Fields(text) {
			all = append(all, event.Generation{ID: id, Start: uint64(i + 1)})
		}
		return all
	}
	var many string
	for i := range event.MaxGenerations {
		many += fmt.Sprintf("g%d ", i)
	}
	older, another := list(many), event.Generation{ID: "c", Start: 700}
	full := event.NextGenerations(older, event.Generation{ID: "a", Start: 500}, event.Generation{ID: "b", Start: 600})
	for _, tt := range []struct {
		name                   string
		earlier, now, expected []event.Generation
	}{
		{"nothing has changed", list("a b"), list("a b"), list("a b")},
		{"one has begun", list("a b"), list("a b c"), list("a b c")},
		{"the newest is written over", list("a b"), list("a"), list("a b")},
		{"and another one has begun", list("a b"), []event.Generation{{ID: "a", Start: 1}, {ID: "c", Start: 7}}, []event.Generation{{ID: "a", Start: 1}, {ID: "b", Start: 2}, {ID: "c", Start: 7}}},
		{"the first look", nil, list("a b"), list("a b")},
		{"another log", list("a b"), list("c"), list("c")},
		{"a full list, and one has begun", full, event.NextGenerations(full, another), event.NextGenerations(full, another)},
		{"the newest of a full list are written over", full, older, full},
		{"and another one has begun, too", full, event.NextGenerations(older, another), event.NextGenerations(full, another)},
	} {
		if got := event.KeepGenerations(tt.earlier, tt.now); !slices.Equal(got, tt.expected) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.expected)
		}
	}
}
