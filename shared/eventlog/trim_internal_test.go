package eventlog

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTrimList_RoundTrip(t *testing.T) {
	for text, want := range map[string][]uint64{
		"":        nil,
		"7*3,3":   {7, 8, 9, 12},
		"1*2":     {1, 2},
		"a":       {10},
		"z,1,1*2": nil, // formatList does not write it, but it is read
	} {
		got, err := parseList(text, 100)
		if err != nil || want != nil && !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if want != nil && formatList(want) != text {
			t.Errorf("%v is written as %q", want, formatList(want))
		}
	}
	for _, bad := range []string{",", "0", "-1", "1*0", "1*", "*2", "x!", "3*zzzzzzzz", "1*1kw1", "2t", "2s*2", "zzzzzzzzzzzzz"} {
		if got, err := parseList(bad, 100); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// The longest list fits into the headers of one message.
func TestTrimList_Bounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	var all []uint64
	for seq := uint64(1) << 40; len(all) < MaxListed; seq += 1 + rng.Uint64N(1<<30) {
		all = append(all, seq)
	}
	text := formatList(all)
	if len(text) > 60_000 {
		t.Errorf("%d bytes", len(text))
	}
	if got, err := parseList(text, all[len(all)-1]); err != nil || !slices.Equal(got, all) {
		t.Errorf("%d of %d are read: %v", len(got), len(all), err)
	}
}

func FuzzTrimList(f *testing.F) {
	f.Add("7*3,3", uint64(100))
	f.Add("zzzzzzzzzzzzz*2", uint64(1<<63))
	f.Fuzz(func(t *testing.T, text string, upTo uint64) {
		all, err := parseList(text, upTo)
		if err != nil {
			return
		}
		if len(all) > MaxListed || len(all) > 0 && all[len(all)-1] > upTo || !slices.IsSorted(all) {
			t.Fatalf("%d sequences up to %d", len(all), upTo)
		}
		if again, err := parseList(formatList(all), upTo); err != nil || !slices.Equal(all, again) {
			t.Fatalf("%v is read as %v: %v", all, again, err)
		}
	})
}
