package host

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/logrepeat"
)

// A bridge that is replaced learns so at once; one that does not know tries until it does, or its time is over.
func TestHost_HasName(t *testing.T) {
	for name, tt := range map[string]struct {
		looks []error // the last one stays
		has   bool
		took  time.Duration
	}{
		"has it":          {[]error{nil}, true, 0},
		"is replaced":     {[]error{ErrReplaced}, false, 0},
		"learns it later": {[]error{errors.New("no NATS"), nil}, true, 50 * time.Millisecond},
		"does not know":   {[]error{errors.New("no NATS")}, false, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, begun := &Host{Life: t.Context()}, time.Now()
				h.Confirm = func(context.Context) error {
					err := tt.looks[0]
					if len(tt.looks) > 1 {
						tt.looks = tt.looks[1:]
					}
					return err
				}
				if has := h.HasName(); has != tt.has || time.Since(begun) != tt.took {
					t.Errorf("it has its name %t, after %s", has, time.Since(begun))
				}
			})
		})
	}
}

// Within a minute the log reports once that the MCP server can be reached again, and nothing after the next warning.
func TestHost_ReachedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		h := &Host{Life: t.Context(), Logger: log, troubles: logrepeat.New(log)}
		for range 3 {
			h.Unreachable(errors.New("refused"))
			h.Reached()
		}
		if warnings, others := bytes.Count(out.Bytes(), []byte("level=WARN")), bytes.Count(out.Bytes(), []byte("level=INFO")); warnings != 2 || others != 1 {
			t.Errorf("%d warnings, %d other lines: %s", warnings, others, &out)
		}
	})
}
