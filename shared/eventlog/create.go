package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/clocks"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/logrepeat"
	"rejoin/shared/natsconn"
)

const (
	// maxBegun is how many publishes may be in flight: far more than any ingest begins.
	maxBegun = 1 << 20
	// forgetBegun is when a publish that JetStream does not answer is forgotten; a caller that
	// waits for it has given up before.
	forgetBegun = time.Minute
)

// Create opens the log and creates its missing partitions, with settings; an existing
// log keeps its own settings. Only janitors and the standalone program create missing
// partitions, and an existing one stays as it is: the acting janitor alone changes it.
//
// Errors wrap [ErrInvalidSettings], [ErrMismatch], [ErrFull] or [ErrUnavailable].
func Create(ctx context.Context, nc *nats.Conn, settings Settings, log *slog.Logger) (*Log, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	l, err := newLog(nc, log)
	if err != nil {
		return nil, err
	}
	l.creator = true
	has, err := l.readSettings(ctx)
	if errors.Is(err, ErrNotFound) {
		has = settings.withDefaults()
	} else if err != nil {
		return nil, err
	}
	l.adopt(has)
	if payload := nc.MaxPayload(); payload > 0 && payload < int64(has.Limits().MaxMessageBytes+HeaderRoom) {
		log.Warn("NATS takes smaller messages than the log: raise its max_payload", "max_payload", payload, "max_message_bytes", has.MaxMessageBytes)
	}
	servers := sync.OnceValue(func() cluster.Servers { return l.seen(ctx, has.Replicas) })
	// MCP_0 comes last: it holds the settings, so a reader that sees it sees a whole log.
	for p := has.Partitions - 1; p >= 0; p-- {
		if e := l.createPartition(ctx, p, State{}, servers); e != nil && (err != nil || !errors.Is(e, ErrUnavailable)) {
			return nil, e
		}
	}
	return l.start(ctx)
}

// Open opens the log, and waits until it exists or ctx ends. The error wraps
// [ErrMismatch] or ctx's error.
func Open(ctx context.Context, nc *nats.Conn, log *slog.Logger) (*Log, error) {
	return open(ctx, nc, log, false)
}

// OpenToShow opens the log for a caller that may ask NATS only for the log's configuration and state:
// a [State] lacks the generations that began with an entry since a janitor was there.
// Errors are those of [Open].
func OpenToShow(ctx context.Context, nc *nats.Conn, log *slog.Logger) (*Log, error) {
	return open(ctx, nc, log, true)
}

func open(ctx context.Context, nc *nats.Conn, log *slog.Logger, shows bool) (*Log, error) {
	l, err := newLog(nc, log)
	if err != nil {
		return nil, err
	}
	l.shows = shows
	said := false
	for {
		has, err := l.readSettings(ctx)
		if err == nil {
			l.adopt(has)
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

func newLog(nc *nats.Conn, log *slog.Logger) (*Log, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout),
		jetstream.WithPublishAsyncMaxPending(maxBegun), jetstream.WithPublishAsyncTimeout(forgetBegun))
	if err != nil {
		return nil, err
	}
	l := &Log{nc: nc, js: js, server: natsconn.NewServer(nc), log: log, lookTrouble: logrepeat.New(log), beginWithin: lookWithin, now: clocks.New(time.Now)}
	l.converted, l.convert = context.WithCancelCause(context.Background())
	return l, nil
}

// readSettings asks partition 0 for the settings of the log.
func (l *Log) readSettings(ctx context.Context) (Settings, error) {
	stream, err := l.find(ctx, 0)
	if err != nil {
		return Settings{}, apiError(err)
	}
	return settingsFrom(stream.CachedInfo().Config.Metadata)
}

// adopt takes the settings of the log, and makes its partitions' structs.
func (l *Log) adopt(settings Settings) {
	l.settings.Store(&settings)
	l.parts = make([]*partition, settings.Partitions)
	for p := range l.parts {
		l.parts[p] = &partition{stream: unseen{}, changed: make(chan struct{}), owned: make(chan struct{}, 1), births: newBirths()}
	}
}

// start looks at each partition. One that is unavailable, or that is missing and awaits a janitor, is
// found later, as while the log is open.
func (l *Log) start(ctx context.Context) (*Log, error) {
	failed := make([]error, len(l.parts))
	var looking sync.WaitGroup
	for p := range l.parts {
		looking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			failed[p] = l.refresh(ctx, p)
		})
	}
	looking.Wait()
	for p, err := range failed {
		if err != nil && (ctx.Err() != nil || !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotFound)) {
			return nil, fmt.Errorf("partition %d: %w", p, err)
		}
	}
	watchCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.watched.Go(func() { l.watch(watchCtx) })
	return l, nil
}

// unseen is the handle of a partition that no look has found yet.
type unseen struct{ jetstream.Stream }

var errUnseen = errors.New("the partition was not found yet")

func (unseen) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	return nil, errUnseen
}

func (unseen) GetMsg(context.Context, uint64, ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	return nil, errUnseen
}

func (unseen) GetLastMsgForSubject(context.Context, string) (*jetstream.RawStreamMsg, error) {
	return nil, errUnseen
}

func (unseen) DeleteMsg(context.Context, uint64) error { return errUnseen }

func (unseen) Purge(context.Context, ...jetstream.StreamPurgeOpt) error { return errUnseen }
