package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func setLimits(t *testing.T, l *eventlog.Log, settings eventlog.Settings) {
	t.Helper()
	for p := settings.Partitions - 1; p >= 0; p-- {
		must.NoError(t, l.SetLimits(waittest.Context(t), p, settings))
	}
}

// untilState waits until a log has seen a state of a partition by itself.
func untilState(t *testing.T, l *eventlog.Log, p int, ok func(eventlog.State) bool) {
	t.Helper()
	waittest.Value(t, "the expected state", func() eventlog.State { state, _ := l.State(p); return state }, ok)
}

func metadata(t *testing.T, l *eventlog.Log, stream string) map[string]string {
	t.Helper()
	return streamOf(t, l, stream).CachedInfo().Config.Metadata
}

func TestSetLimits_ReachEveryService(t *testing.T) {
	srv := natstest.StartParallel(t)
	l := create(t, srv, eventlog.Settings{Partitions: 2, MaxAge: time.Minute, MaxEventsPerStream: 5, MaxBytes: 1 << 20})
	other := open(t, srv)
	publishAll(t, l, "t", 0, 4)
	generations := metadata(t, l, "MCP_0")["rejoin.generations"]
	to := l.Settings()
	to.MaxAge, to.MaxEventsPerStream, to.MaxBytes = -1, 3, 2<<20
	to.MaxEventsPerSession, to.MaxBytesPerSession, to.MaxMessageBytes = 7, -1, 16<<20
	must.NoError(t, l.SetLimits(waittest.Context(t), 1, to))
	if l.Settings() == to {
		t.Error("the log has the settings before all partitions have the limits")
	}
	setLimits(t, l, to)
	want := eventlog.Limits{Replicas: 1, MaxBytes: 1 << 20, MaxMessageBytes: 16 << 20}
	for name, of := range map[string]*eventlog.Log{"its own": l, "another's": other} {
		for p := range 2 {
			untilState(t, of, p, func(s eventlog.State) bool { return s.Limits == want })
		}
		if of.Settings() != to {
			t.Errorf("%s: %+v", name, of.Settings())
		}
	}
	if again := open(t, srv).Settings(); again != to {
		t.Errorf("opened again: %+v", again)
	}
	if state, err := l.Look(waittest.Context(t), l.Partition("s")); err != nil || state.Entries != 4 {
		t.Errorf("a smaller limit has removed events: %+v, %v", state, err)
	}
	meta := metadata(t, l, "MCP_0")
	if meta["rejoin.generations"] != generations || meta["_nats.level"] == "" {
		t.Errorf("the metadata is %v", meta)
	}

	before := meta
	setLimits(t, l, to) // again: no change
	if after := metadata(t, l, "MCP_0"); !maps.Equal(before, after) {
		t.Errorf("the metadata was %v and is %v", before, after)
	}
}

func TestSetLimits_FixedSettings(t *testing.T) {
	_, l := single(t)
	for name, change := range map[string]func(*eventlog.Settings){
		"partitions":  func(s *eventlog.Settings) { s.Partitions = 2 },
		"compression": func(s *eventlog.Settings) { s.Compression = !s.Compression },
		"a default":   func(s *eventlog.Settings) { s.MaxAge = 0 },
		"nonsense":    func(s *eventlog.Settings) { s.MaxBytes = -2 },
	} {
		to := l.Settings()
		change(&to)
		if err := l.SetLimits(waittest.Context(t), 0, to); !errors.Is(err, eventlog.ErrInvalidSettings) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func makeRoom(t *testing.T, l *eventlog.Log, want bool) {
	t.Helper()
	if made, err := l.MakeRoom(waittest.Context(t), 0); err != nil || made != want {
		t.Errorf("room was made: %t, %v", made, err)
	}
}

// fill publishes events of a size until the log is full.
func fill(t *testing.T, l *eventlog.Log, size int) {
	t.Helper()
	e := of("s", "t", 0)
	e.Data = bytes.Repeat([]byte("x"), size)
	var err error
	for err == nil {
		_, err = l.Publish(waittest.Context(t), e)
	}
	if !errors.Is(err, eventlog.ErrFull) {
		t.Fatalf("a full log says %v", err)
	}
}

// A janitor that has to store an entry before it may remove others gets the room for it.
func TestMakeRoom(t *testing.T) {
	t.Parallel()
	settings := one()
	settings.MaxBytes = 64 << 10
	l := create(t, natstest.Start(t), settings)
	fill(t, l, 10)
	if first := look(t, l).First; first != 1 {
		t.Errorf("a full log has removed everything before %d", first)
	}
	makeRoom(t, l, true)
	announce(t, l, "t", 2, eventlog.Trimmed)
	setLimits(t, l, l.Settings())
	if limits := look(t, l).Limits; limits.MaxBytes != settings.MaxBytes {
		t.Errorf("the limits are %+v", limits)
	}
	if _, err := l.Publish(waittest.Context(t), of("s", "t", 1)); !errors.Is(err, eventlog.ErrFull) {
		t.Errorf("an event that does not fit: %v", err)
	}
	must.NoError(t, l.Purge(waittest.Context(t), 0, 50))
	if first := look(t, l).First; first != 50 {
		t.Errorf("the first sequence is %d", first)
	}
	mustPublish(t, l, of("s", "t", 2))
}

// Publishers take the room as well, and a limit may be lowered to less than half of what a partition
// holds: the janitor can store its entries all the same.
func TestMakeRoom_BeyondTwice(t *testing.T) {
	t.Parallel()
	settings := one()
	settings.MaxBytes = 256 << 10
	l := create(t, natstest.Start(t), settings)
	fill(t, l, 8<<10)
	settings = l.Settings()
	settings.MaxBytes = 64 << 10
	setLimits(t, l, settings)
	var last eventlog.Ack
	for upTo := range uint64(3) {
		makeRoom(t, l, true)
		trim := eventlog.Trim{Session: "s", Life: "l", Stream: "t", UpTo: 2 + upTo, Reason: eventlog.Trimmed}
		last = must.Value(l.Announce(waittest.Context(t), trim, last.Sequence))(t)
		fill(t, l, 8<<10)
	}
	makeRoom(t, l, true)
	before := look(t, l).Limits.MaxBytes
	makeRoom(t, l, false)
	if after := look(t, l).Limits.MaxBytes; after != before {
		t.Errorf("with room left, it gets %d more", after-before)
	}
}

// Both read a partition's configuration, change it and write it back.
func TestSetLimits_DuringBeginGeneration(t *testing.T) {
	srv := natstest.StartParallel(t)
	l := create(t, srv, eventlog.Settings{Partitions: 1})
	to := l.Settings()
	for life := range 5 {
		before := len(look(t, l).Generations)
		restart(t, srv, l)
		to.MaxBytes, to.MaxEventsPerSession = int64(100-life)<<20, int64(life+1)
		limited := make(chan error, 1)
		go func() {
			var err error
			for ctx := waittest.Context(t); ctx.Err() == nil; {
				if err = l.SetLimits(within(t, time.Second), 0, to); err == nil {
					break
				}
			}
			limited <- err
		}()
		waittest.NoError(t, func() error { _, err := l.BeginGeneration(within(t, time.Second), 0); return err })
		must.NoError(t, <-limited)
		state := look(t, l)
		if len(state.Generations) != before+1 || state.Limits != to.Limits() || l.Settings() != to {
			t.Errorf("%d generations after %d, limits %+v, settings %+v", len(state.Generations), before, state.Limits, l.Settings())
		}
	}
}

// The metadata that a later version has written of a partition, and of the log, stay.
func TestChange_KeepsMetadataOfALaterVersion(t *testing.T) {
	srv := natstest.StartParallel(t)
	l := create(t, srv, eventlog.Settings{Partitions: 1})
	cfg := streamOf(t, l, "MCP_0").CachedInfo().Config
	cfg.Metadata["rejoin.later"] = "7"
	update(t, l, cfg)
	to := l.Settings()
	to.MaxAge = 2 * time.Hour
	setLimits(t, l, to)
	restart(t, srv, l)
	waittest.NoError(t, func() error { _, err := l.BeginGeneration(within(t, time.Second), 0); return err })
	if now := streamOf(t, l, "MCP_0").CachedInfo().Config.Metadata; now["rejoin.later"] != "7" || now["rejoin.generations"] == cfg.Metadata["rejoin.generations"] {
		t.Errorf("%v", now)
	}
}

// A program that runs while a later version converts the log stores nothing in the converted log.
func TestConverted_StoresNothing(t *testing.T) {
	l := create(t, natstest.StartParallel(t), eventlog.Settings{Partitions: 2})
	mustPublish(t, l, of("s", "t", 1))
	for _, name := range []string{"MCP_1", "MCP_0"} {
		cfg := streamOf(t, l, name).CachedInfo().Config
		cfg.Metadata["rejoin.version"] = "4"
		update(t, l, cfg)
	}
	waittest.Receive(t, "the log has another version", l.Converted().Done())
	if err := context.Cause(l.Converted()); !errors.Is(err, eventlog.ErrMismatch) || !strings.Contains(err.Error(), `version "4"`) {
		t.Error(err)
	}
	if _, err := l.Publish(waittest.Context(t), of("s", "t", 2)); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("an event is stored, %v", err)
	}
}

// A server may lose the metadata of a stream, and get them back.
func TestLook_InvalidMetadata(t *testing.T) {
	_, l := single(t)
	cfg := streamOf(t, l, "MCP_0").CachedInfo().Config
	was := cfg.Metadata
	for _, tt := range []struct{ key, value, want string }{
		{"rejoin.version", "", `version ""`},
		{"rejoin.partitions", "2", "2 partitions"},
		{"rejoin.generations", "", ""},
		{"rejoin.generations", "a", ""},
		{"rejoin.generations", "a:", ""},
		{"rejoin.generations", "a:b", ""},
		{"rejoin.generations", ":1", ""},
		{"rejoin.generations", "a:1,", ""},
		{"rejoin.generations", "a:-1", ""},
	} {
		cfg.Metadata = maps.Clone(was)
		cfg.Metadata[tt.key] = tt.value
		update(t, l, cfg)
		if _, err := l.Look(waittest.Context(t), 0); !errors.Is(err, eventlog.ErrMismatch) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q: %v", tt.key, tt.value, err)
		}
	}
	cfg.Metadata = was
	update(t, l, cfg)
	mustPublish(t, l, of("s", "t", 1))
	if l.Converted().Err() != nil || l.Settings().Partitions != 1 {
		t.Errorf("%v, with %d partitions", context.Cause(l.Converted()), l.Settings().Partitions)
	}
}
