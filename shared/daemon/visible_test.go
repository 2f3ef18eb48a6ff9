package daemon

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

// Any logged value is one line without control characters, from which it can be read again.
func FuzzVisible(f *testing.F) {
	for _, seed := range []string{"", "plain", "a\nb\r\x1b[31m", "\x7f\u0080\u009b31m\u009f\u00a0é", "\xc2", "\xc2\x9b\xff\u2028"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, format := range []string{"json", "text"} {
			var out strings.Builder
			log := (&Config{LogFormat: format}).Logger(&out)
			log.Info(value, "value", value, slog.Group("g", "error", value)) //nolint:sloglint // a message may be the NATS server's
			line, rest, ended := strings.Cut(out.String(), "\n")
			if !ended || rest != "" {
				t.Fatalf("%s: not one line: %q", format, out.String())
			}
			for _, r := range line {
				if r < ' ' || r >= 0x7f && r < 0xa0 {
					t.Fatalf("%s: %q has %q", format, line, r)
				}
			}
			var record struct{ Msg, Value string }
			if format == "json" && (json.Unmarshal([]byte(line), &record) != nil || record.Value != strings.ToValidUTF8(record.Value, "") || record.Msg != record.Value) {
				t.Fatalf("%q is read as %+v", line, record)
			}
		}
	})
}
