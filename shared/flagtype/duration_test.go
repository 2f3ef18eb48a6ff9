package flagtype

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 168 * time.Hour, "0d": 0, "90m": 90 * time.Minute, "-1h": -time.Hour} {
		if got, err := ParseDuration(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1.5d", "36501d", "7 d", "1d2h"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func TestDuration_UnmarshalText(t *testing.T) {
	for text, want := range map[string]Duration{"-1": -1, "7d": Duration(168 * time.Hour), "-1h": Duration(-time.Hour), "0": 0} {
		var got Duration
		if err := got.UnmarshalText([]byte(text)); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	got := Duration(5)
	if err := got.UnmarshalText([]byte("soon")); err == nil || err.Error() != `"soon" is not a duration (examples: 90m, 24h, 7d; -1 for unlimited)` || got != 5 {
		t.Errorf("%d, %v", got, err)
	}
}
