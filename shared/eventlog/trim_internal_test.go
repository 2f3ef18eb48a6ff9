package eventlog

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRemoved_RoundTrip(t *testing.T) {
	for text, want := range map[string][]uint64{
		"":        nil,
		"7*3,3":   {7, 8, 9, 12},
		"1*2":     {1, 2},
		"a":       {10},
		"z,1,1*2": nil, // not what is written, but read
	} {
		got, err := parseRemoved(text, 100)
		if err != nil || want != nil && !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if want != nil && formatRemoved(want) != text {
			t.Errorf("%v is written as %q", want, formatRemoved(want))
		}
	}
	for _, bad := range []string{",", "0", "-1", "1*0", "1*", "*2", "x!", "3*zzzzzzzz", "1*1kw1", "2t", "2s*2", "zzzzzzzzzzzzz"} {
		if got, err := parseRemoved(bad, 100); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// The longest list fits into the headers of one message.
func TestRemoved_Bounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	var all []uint64
	for seq := uint64(1) << 40; len(all) < MaxRemoved; seq += 1 + rng.Uint64N(1<<30) {
		all = append(all, seq)
	}
	text := formatRemoved(all)
	if len(text) > 60_000 {
		t.Errorf("%d bytes", len(text))
	}
	if got, err := parseRemoved(text, all[len(all)-1]); err != nil || !slices.Equal(got, all) {
		t.Errorf("%d of %d are read: %v", len(got), len(all), err)
	}
}

func FuzzRemoved(f *testing.F) {
	f.Add("7*3,3", uint64(100))
	f.Add("zzzzzzzzzzzzz*2", uint64(1<<63))
	f.Fuzz(func(t *testing.T, text string, upTo uint64) {
		all, err := parseRemoved(text, upTo)
		if err != nil {
			return
		}
		if len(all) > MaxRemoved || len(all) > 0 && all[len(all)-1] > upTo || !slices.IsSorted(all) {
			t.Fatalf("%d sequences up to %d", len(all), upTo)
		}
		if again, err := parseRemoved(formatRemoved(all), upTo); err != nil || !slices.Equal(all, again) {
			t.Fatalf("%v is read as %v: %v", all, again, err)
		}
	})
}
