package eventlog

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natstest"
)

// A janitor that stands still between reading a configuration and storing it undoes nothing that
// the next one has written meanwhile.
func TestChange_HeldUp(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	quiet := slog.New(slog.DiscardHandler)
	l, err := Create(t.Context(), srv.Connect(), Settings{Partitions: 1, MaxBytes: 1 << 20}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	next, err := Open(t.Context(), srv.Connect(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Close)
	held := false
	err = l.change(t.Context(), 0, func(_ *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
		if !held {
			held = true
			if err := next.MakeRoom(t.Context(), 0); err != nil {
				t.Error(err)
			}
			time.Sleep(lookWithin)
		}
		cfg.Metadata["rejoin.test"] = "late"
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
	if state, err := next.Look(t.Context(), 0); err != nil || state.Limits.MaxBytes <= 1<<20 {
		t.Errorf("%+v, %v", state, err)
	}
}
