package edge

import (
	"errors"
	"testing"

	"rejoin/services/sse-edge/window"

	"rejoin/shared/event"
)

// After a roll-back the log is of the new life at once, and the window when its tail
// has begun anew. What is read of both in between must not be taken for one.
func TestALogThatIsAheadOfItsWindowByAGenerationIsWaitedFor(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	last := f.publish("a", 5)
	p, at := s.partition("s"), placeOf("s", "a")
	eventually(t, "the window has it", func() bool { return p.window.Stats().End >= last })
	r, err := p.open(patient(t), at, start{}, window.Limits{Events: 10, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()

	t.Run("in a read of the log", func(t *testing.T) {
		v := p.window.Read(&r.Subscriber, r.limit, nil)
		v.Inside, v.Floor = false, 4
		var s step
		if err := r.below(patient(t), v, &s); err != nil || len(s.items) != 3 {
			t.Fatalf("below: %v, %d events", err, len(s.items))
		}
		v.Generation = "an earlier one"
		if err := r.below(patient(t), v, &s); !errors.Is(err, errBehind) {
			t.Errorf("below: %v, want that the window is behind", err)
		}
	})

	t.Run("in a resume ahead of the window", func(t *testing.T) {
		a := p.window.Attach(at, false, 0)
		defer p.window.Detach(a.Chain)
		a.Gens, a.End = append(a.Gens[:len(a.Gens):len(a.Gens)], event.Generation{ID: "lost", Start: 3}), 3
		of := r.tagPlace()
		of.Generation = "lost"
		id := event.ID{Stream: "a", Tag: of.Tag(), Sequence: 5}
		if err := r.resume(patient(t), id.String(), a); !errors.Is(err, errBehind) {
			t.Errorf("resume: %v, want that the window is behind", err)
		}
	})
}
