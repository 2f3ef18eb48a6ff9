package daemon

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
