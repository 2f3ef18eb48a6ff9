package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
	"rejoin/shared/tracing"
)

// Log is an open log.
//
//	Create, Open ──▶ Log ──starts──▶ watch: one goroutine, refreshes each
//	                  │              partition's State, ends in Close
//	                  │              live: one, ends requests with their connection
//	                  ├─ Publish, Begin, …    the caller's goroutine
//	                  ├─ EndSession           the caller's, and up to 256 for its streams
//	                  ├─ Tail                 the caller's goroutine and one of nats.go
//	                  └─ Read, Delete, …      the caller's goroutine
type Log struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	log      *slog.Logger
	settings atomic.Pointer[Settings]
	creator  bool
	parts    []*partition
	life     atomic.Pointer[life]
	feed     *Feed
	server   *natsconn.Server
	traces   *tracing.Traces
	gathers  gathers

	stop    context.CancelFunc
	watched sync.WaitGroup
}

// retryEvery is how long Open waits between looks at a log that is not there yet.
const retryEvery = 200 * time.Millisecond

// requestTimeout bounds one request to JetStream's API.
const requestTimeout = 5 * time.Second

// Create opens the log and creates whatever of it is missing, with settings; an
// existing log keeps its own settings. One service of an installation is configured to
// create: the janitor, or the standalone program.
//
// Errors wrap [ErrInvalidSettings], [ErrMismatch] or [ErrUnavailable].
func Create(ctx context.Context, nc *nats.Conn, settings Settings, log *slog.Logger) (*Log, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	l, err := newLog(nc, log, true)
	if err != nil {
		return nil, err
	}
	has, err := l.readSettings(ctx)
	if errors.Is(err, ErrNotFound) {
		has, err = settings.withDefaults(), nil
	}
	if err != nil {
		return nil, err
	}
	l.settings.Store(&has)
	servers := sync.OnceValue(func() Servers { return l.seen(ctx) })
	// MCP_0 comes last: it holds the settings, so a reader that sees it sees a whole log.
	for p := has.Partitions - 1; p >= 0; p-- {
		if err := l.createPartition(ctx, p, servers); err != nil {
			return nil, err
		}
	}
	return l.start(ctx)
}

// Open opens the log, and waits until it exists or ctx ends. The error wraps
// [ErrMismatch] or ctx's error.
func Open(ctx context.Context, nc *nats.Conn, log *slog.Logger) (*Log, error) {
	l, err := newLog(nc, log, false)
	if err != nil {
		return nil, err
	}
	said := false
	for {
		has, err := l.readSettings(ctx)
		if err == nil {
			l.settings.Store(&has)
			return l.start(ctx)
		}
		if errors.Is(err, ErrMismatch) {
			return nil, err
		}
		if !said {
			log.Info("waiting for the log", "reason", err)
			said = true
		}
		if !natsconn.Pause(ctx, retryEvery) {
			return nil, fmt.Errorf("the log is not there (%w): %w", err, ctx.Err())
		}
	}
}

const (
	// maxBegun is how many publishes may be under way: far more than any ingest begins.
	maxBegun = 1 << 20
	// forgetBegun is when a publish that JetStream does not answer is forgotten; a caller that
	// waits for it has given up before.
	forgetBegun = time.Minute
)

func newLog(nc *nats.Conn, log *slog.Logger, creator bool) (*Log, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout),
		jetstream.WithPublishAsyncMaxPending(maxBegun), jetstream.WithPublishAsyncTimeout(forgetBegun))
	if err != nil {
		return nil, err
	}
	return &Log{nc: nc, js: js, server: natsconn.NewServer(nc), log: log, creator: creator}, nil
}

func (l *Log) start(ctx context.Context) (*Log, error) {
	l.life.Store(newLife())
	l.parts = make([]*partition, l.Settings().Partitions)
	for p := range l.parts {
		l.parts[p] = &partition{changed: make(chan struct{}), owned: make(chan struct{}, 1)}
		if err := l.refresh(ctx, p); err != nil {
			return nil, fmt.Errorf("partition %d: %w", p, err)
		}
	}
	watchCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.watched.Go(func() { l.watch(watchCtx) })
	l.watched.Go(func() { l.live(watchCtx) })
	return l, nil
}

// Close ends the watching of the log. It does not close the connection.
func (l *Log) Close() {
	l.stop()
	l.watched.Wait()
}

// Settings returns the log's settings, at most a few seconds old. Its limits may
// and replicas may change; partitions and the like never do.
func (l *Log) Settings() Settings { return *l.settings.Load() }

// Partition returns the partition of a session.
func (l *Log) Partition(session string) int {
	return event.Partition(session, len(l.parts))
}

// Conn returns the connection that the log was opened on.
func (l *Log) Conn() *nats.Conn { return l.nc }

func (l *Log) readSettings(ctx context.Context) (Settings, error) {
	stream, err := l.js.Stream(ctx, streamName(0))
	if err != nil {
		return Settings{}, apiError(err)
	}
	return settingsFrom(stream.CachedInfo().Config.Metadata)
}

// createPartition makes the JetStream stream of a partition when it is missing.
// It never updates one that is there. servers returns those of the cluster.
func (l *Log) createPartition(ctx context.Context, p int, servers func() Servers) error {
	settings := l.Settings()
	cfg := settings.streamConfig(p)
	if p == 0 {
		for k, v := range settings.metadata() {
			cfg.Metadata[k] = v
		}
	}
	stream, err := l.js.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		cfg.Metadata = newPartitionMetadata(cfg, l.nc.ConnectedServerId(), servers())
		_, err = l.js.CreateStream(ctx, cfg)
		if err == nil {
			return nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return apiError(err)
		}
		stream, err = l.js.Stream(ctx, cfg.Name)
	}
	if err != nil {
		return apiError(err)
	}
	return checkPartition(stream.CachedInfo().Config, p)
}

func checkPartition(cfg jetstream.StreamConfig, p int) error {
	if len(cfg.Subjects) != 1 || cfg.Subjects[0] != streamSubject(p) {
		return fmt.Errorf("%w: the JetStream stream %s holds %q and not %q; it belongs to something else",
			ErrMismatch, cfg.Name, cfg.Subjects, streamSubject(p))
	}
	if v := cfg.Metadata[metaVersion]; v != Version {
		return fmt.Errorf("%w: the JetStream stream %s has version %q and this program reads version %q", ErrMismatch, cfg.Name, v, Version)
	}
	if cfg.Metadata[metaBirth] == "" {
		return fmt.Errorf("%w: the JetStream stream %s has no %s", ErrMismatch, cfg.Name, metaBirth)
	}
	return nil
}

// apiError names what JetStream's API answered in this package's errors.
func apiError(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.As(err, &api) && insufficient(api.ErrorCode):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.As(err, &api) && !natsconn.Passes(err):
		return err
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// insufficient reports whether a JetStream error code means lack of space: memory
// (10028), storage (10047), resources (10023), account resources (10002), a stream's
// bytes or messages (10054, 10077 with a store failure).
func insufficient(code jetstream.ErrorCode) bool {
	switch code {
	case 10002, 10023, 10028, 10047, 10077:
		return true
	default:
		return false
	}
}
