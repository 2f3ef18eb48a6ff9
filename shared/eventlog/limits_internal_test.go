package eventlog

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/clocks"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
)

// A janitor that stands still between reading a configuration and storing it undoes nothing that
// the next one has written meanwhile.
func TestChange_HeldUp(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	l := createLog(t, srv.Connect(), Settings{Partitions: 1, MaxBytes: 1 << 20})
	next := must.Value(Open(t.Context(), srv.Connect(), slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(next.Close)
	clock, passed := l.now, clocks.Instant{}
	l.now = func() clocks.Instant {
		now := clock()
		return clocks.Instant{Mono: now.Mono + passed.Mono, Wall: now.Wall + passed.Wall}
	}
	for name, pause := range map[string]clocks.Instant{
		"suspended":      {Wall: 2 * lookWithin},
		"clock set back": {Mono: 2 * lookWithin, Wall: -time.Hour},
		"held up":        {Mono: 2 * lookWithin, Wall: 2 * lookWithin},
	} {
		before, err := next.Look(t.Context(), 0)
		must.NoError(t, err)
		passed = clocks.Instant{}
		err = l.change(t.Context(), 0, func(_ *jetstream.StreamInfo, cfg *jetstream.StreamConfig) (bool, error) {
			if passed == (clocks.Instant{}) {
				passed = pause
				if _, err := next.MakeRoom(t.Context(), 0); err != nil {
					t.Error(err)
				}
			}
			cfg.Metadata["rejoin.test"] = name
			return true, nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if state, err := next.Look(t.Context(), 0); err != nil || state.Limits.MaxBytes <= before.Limits.MaxBytes {
			t.Errorf("%s: %+v, %v", name, state, err)
		}
	}
}
