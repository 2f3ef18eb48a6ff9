package edge

import (
	"errors"
	"testing"

	"rejoin/shared/event"
)

// After a roll-back the log is of the new life at once, and the window when its tail
// has begun anew. What is read of both in between must not be taken for one.
func TestALogThatIsAheadOfItsWindowByAGenerationIsWaitedFor(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	last := f.publish("a", 5)
	p, at := s.partition("s"), placeOf("s", "a")
	eventually(t, "the window has it", func() bool { return p.window.stats().end >= last })
	r, err := p.open(patient(t), at, start{}, limits{events: 10, bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()

	t.Run("in a read of the log", func(t *testing.T) {
		v := p.window.read(r, r.limit, nil)
		v.inside, v.floor = false, 4
		var s step
		if err := r.below(patient(t), v, &s); err != nil || len(s.items) != 3 {
			t.Fatalf("below: %v, %d events", err, len(s.items))
		}
		v.generation = "an earlier one"
		if err := r.below(patient(t), v, &s); !errors.Is(err, errBehind) {
			t.Errorf("below: %v, want that the window is behind", err)
		}
	})

	t.Run("in a resume ahead of the window", func(t *testing.T) {
		a := p.window.attach(at, false, 0)
		defer p.window.detach(a.chain)
		a.gens, a.end = append(a.gens[:len(a.gens):len(a.gens)], event.Generation{ID: "lost", Start: 3}), 3
		of := r.tagPlace()
		of.Generation = "lost"
		id := event.ID{Stream: "a", Tag: of.Tag(), Sequence: 5}
		if err := r.resume(patient(t), id.String(), a); !errors.Is(err, errBehind) {
			t.Errorf("resume: %v, want that the window is behind", err)
		}
	})
}
