package eventlog_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestCreate_KeepsSettings(t *testing.T) {
	srv := natstest.StartParallel(t)
	settings := eventlog.Settings{
		Partitions: 3, Replicas: 1, MaxAge: 90 * time.Second, MaxEventsPerStream: 77, MaxBytes: 3 << 20,
		MaxMessageBytes: 1000, MaxEventsPerSession: -1, MaxBytesPerSession: 12345, MaxStreamsPerSession: 7, Compression: true,
	}
	first := create(t, srv, settings)
	for name, l := range map[string]*eventlog.Log{
		"created":                     first,
		"opened":                      open(t, srv),
		"created with other settings": create(t, srv, eventlog.Settings{Partitions: 8}),
	} {
		if got := l.Settings(); got != settings {
			t.Errorf("%s: %+v", name, got)
		}
	}
	js := newJetStream(t, first)
	for _, name := range []string{"MCP_0", "MCP_1", "MCP_2"} {
		cfg := streamOf(t, first, name).CachedInfo().Config
		got := []any{cfg.Subjects, cfg.MaxAge, cfg.MaxMsgsPerSubject, cfg.MaxBytes, cfg.MaxMsgSize, cfg.Discard, cfg.Compression, cfg.MaxConsumers}
		want := []any{[]string{"mcp." + name[4:] + ".>"}, time.Duration(0), int64(-1), int64(1 << 20), int32(64<<10 + 4096), jetstream.DiscardNew, jetstream.S2Compression, 100_000}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if _, err := js.Stream(waittest.Context(t), "MCP_3"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a fourth partition: %v", err)
	}
}

func TestSettings_Defaults(t *testing.T) {
	t.Parallel()
	want := eventlog.DefaultSettings()
	want.Compression = false
	if got := create(t, natstest.Start(t), eventlog.Settings{}).Settings(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSettings_Validate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*eventlog.Settings)
		ok     bool
	}{
		"defaults": {func(*eventlog.Settings) {}, true},
		"all off": {func(s *eventlog.Settings) {
			*s = one()
			s.MaxEventsPerSession, s.MaxBytesPerSession, s.MaxStreamsPerSession = -1, -1, -1
		}, true},
		"no partitions":           {func(s *eventlog.Settings) { s.Partitions = -1 }, false},
		"most partitions":         {func(s *eventlog.Settings) { s.Partitions = 1024 }, true},
		"too many partitions":     {func(s *eventlog.Settings) { s.Partitions = 1025 }, false},
		"no replicas":             {func(s *eventlog.Settings) { s.Replicas = -1 }, false},
		"too many replicas":       {func(s *eventlog.Settings) { s.Replicas = 6 }, false},
		"negative age":            {func(s *eventlog.Settings) { s.MaxAge = -2 }, false},
		"age too short":           {func(s *eventlog.Settings) { s.MaxAge = 99 * time.Millisecond }, false},
		"shortest age":            {func(s *eventlog.Settings) { s.MaxAge = 100 * time.Millisecond }, true},
		"events per stream":       {func(s *eventlog.Settings) { s.MaxEventsPerStream = -2 }, false},
		"events per session":      {func(s *eventlog.Settings) { s.MaxEventsPerSession = -2 }, false},
		"bytes per session":       {func(s *eventlog.Settings) { s.MaxBytesPerSession = -2 }, false},
		"streams per session":     {func(s *eventlog.Settings) { s.MaxStreamsPerSession = -2 }, false},
		"bytes":                   {func(s *eventlog.Settings) { s.MaxBytes = -2 }, false},
		"negative message":        {func(s *eventlog.Settings) { s.MaxMessageBytes = -1 }, false},
		"largest message":         {func(s *eventlog.Settings) { s.MaxMessageBytes = 31 << 20 }, true},
		"message far too large":   {func(s *eventlog.Settings) { s.MaxMessageBytes = 31<<20 + 1 }, false},
		"fewer bytes than spread": {func(s *eventlog.Settings) { s.MaxBytes = 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := eventlog.DefaultSettings()
			tt.change(&s)
			if err := s.Validate(); tt.ok != (err == nil) || err != nil && !errors.Is(err, eventlog.ErrInvalidSettings) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := eventlog.Create(t.Context(), natstest.Start(t).Connect(), eventlog.Settings{Partitions: -1}, quiet(t)); !errors.Is(err, eventlog.ErrInvalidSettings) {
		t.Errorf("Create takes them: %v", err)
	}
}

func TestCreate_ForeignStreams(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		there jetstream.StreamConfig
		want  string
	}{
		"a stream of somebody else":       {jetstream.StreamConfig{Name: "MCP_3", Subjects: []string{"orders.>"}}, "belongs to something else"},
		"more subjects":                   {jetstream.StreamConfig{Name: "MCP_1", Subjects: []string{"mcp.1.>", "orders.>"}}, "belongs to something else"},
		"no metadata":                     {jetstream.StreamConfig{Name: "MCP_2", Subjects: []string{"mcp.2.>"}}, `version ""`},
		"another version":                 {jetstream.StreamConfig{Name: "MCP_0", Subjects: []string{"mcp.0.>"}, Metadata: map[string]string{"rejoin.version": "1"}}, `version "1"`},
		"another version of a partition":  {jetstream.StreamConfig{Name: "MCP_2", Subjects: []string{"mcp.2.>"}, Metadata: map[string]string{"rejoin.version": "1"}}, `version "1"`},
		"settings that cannot be read":    {jetstream.StreamConfig{Name: "MCP_0", Subjects: []string{"mcp.0.>"}, Metadata: map[string]string{"rejoin.version": eventlog.Version, "rejoin.partitions": "many"}}, `rejoin.partitions is "many"`},
		"a partition without generations": {jetstream.StreamConfig{Name: "MCP_1", Subjects: []string{"mcp.1.>"}, Metadata: map[string]string{"rejoin.version": eventlog.Version}}, "no rejoin.birth"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := natstest.Start(t)
			nc := connect(t, srv)
			js := natstest.JetStream(t, nc)
			made, err := js.CreateStream(waittest.Context(t), tt.there)
			must.NoError(t, err)
			_, err = eventlog.Create(waittest.Context(t), nc, eventlog.Settings{Partitions: 4}, quiet(t))
			if !errors.Is(err, eventlog.ErrMismatch) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Create: %v, want %q", err, tt.want)
			}
			now, err := made.Info(waittest.Context(t))
			if err != nil || !reflect.DeepEqual(now.Config, made.CachedInfo().Config) {
				t.Errorf("it was changed: %+v, %v", now, err)
			}
			if tt.there.Name != "MCP_0" {
				return
			}
			if _, err := eventlog.Open(waittest.Context(t), nc, quiet(t)); !errors.Is(err, eventlog.ErrMismatch) {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

func TestOpen_WaitsForTheLog(t *testing.T) {
	srv := natstest.StartParallel(t)
	opened := make(chan func(must.TB) *eventlog.Log, 1)
	nc, ctx := connect(t, srv), waittest.Context(t)
	go func() { opened <- must.Value(eventlog.Open(ctx, nc, quiet(t))) }()
	created := create(t, srv, eventlog.Settings{Partitions: 5})
	l := (<-opened)(t)
	t.Cleanup(l.Close)
	if l.Settings() != created.Settings() {
		t.Errorf("opened %+v", l.Settings())
	}
}

// A server that was killed may have lost a partition until a janitor creates it again (docs/upstream/0036).
func TestOpen_PartitionHasGone(t *testing.T) {
	srv := natstest.StartParallel(t)
	created := create(t, srv, eventlog.Settings{Partitions: 2})
	created.Close()
	deletePartition(t, srv, created, "MCP_1")
	l := open(t, srv)
	create(t, srv, eventlog.Settings{Partitions: 2})
	waittest.Until(t, "the partition is found", func() bool {
		state, _ := l.State(1)
		return state.Origin != ""
	})
}

func TestOpen_ContextEnds(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := eventlog.Open(ctx, nc, quiet(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCreate_DiskIsTooSmall(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	_, err := eventlog.Create(waittest.Context(t), nc, eventlog.Settings{Partitions: 1, MaxBytes: 1 << 50}, quiet(t))
	if !errors.Is(err, eventlog.ErrFull) || !strings.Contains(err.Error(), "NATS cannot provide 1073741824 MiB for MCP_0: raise its max_file_store") {
		t.Errorf("got %v", err)
	}
}

func TestCreator_ReplacesADeletedPartition(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	publish(t, l, "s", "t", 1)
	before, looked := l.State(0)
	<-looked // the next look is two seconds away: NATS has removed the files then (docs/upstream/0013)
	must.NoError(t, js.DeleteStream(waittest.Context(t), "MCP_0"))
	f := follow(t, l, 0, 0)
	f.wait(t, "a new partition", func() bool {
		return len(f.starts) > 0 && f.starts[len(f.starts)-1].Origin != before.Origin
	})
	if got := publish(t, l, "s", "t", 2); got != 1 {
		t.Errorf("its first sequence is %d", got)
	}
	if l.Settings().MaxAge != -1 || openOn(t, l.Conn()).Settings() != l.Settings() {
		t.Error("the settings are gone")
	}
}
