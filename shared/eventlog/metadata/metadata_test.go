package metadata

import "testing"

func TestChecked_RoundTrip(t *testing.T) {
	for text, want := range map[string]Checked{
		"gen:0":                               {"gen", 0, ""},
		"gen:7":                               {"gen", 7, ""}, // of a log that had no leader, or of an earlier version
		"gen:7:nats-1@2026-01-02T03:04:05.6Z": {"gen", 7, "nats-1@2026-01-02T03:04:05.6Z"},
		"gen:18446744073709551615:nats:1":     {"gen", 1<<64 - 1, "nats:1"},
	} {
		if got := ParseChecked(text); got != want || want.Format() != text {
			t.Errorf("%q is read as %+v, and written as %q", text, got, want.Format())
		}
	}
	for _, bad := range []string{"", ":", "gen", "gen:", "gen:-1", "gen:x:nats-1"} {
		if got := ParseChecked(bad); got != (Checked{}) {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}
