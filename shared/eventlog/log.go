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

	"rejoin/shared/eventlog/births"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/logrepeat"
	"rejoin/shared/natsconn"
	"rejoin/shared/tracing"
)

// Log is an open log.
//
//	Create, Open ──▶ Log ──starts──▶ watch: one goroutine, refreshes each
//	                  │              partition's State, ends in Close
//	                  │              followLink: one, ends requests with their connection
//	                  ├─ Publish, Series, …   the caller's goroutine, and in a cluster one for
//	                  │                       each fence and each series, while events wait
//	                  ├─ EndSession           the caller's, and up to 256 for its streams
//	                  ├─ Tail                 the caller's goroutine and one of nats.go
//	                  └─ Read, Delete, …      the caller's goroutine
type Log struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	log *slog.Logger
	// lookTrouble logs that partitions cannot be looked at, which is tried again soon.
	lookTrouble *logrepeat.Log
	settings    atomic.Pointer[Settings]
	creator     bool
	shows       bool // it reads no entries
	parts       []*partition
	link        atomic.Pointer[linkContext]
	feed        *Feed
	server      *natsconn.Server
	traces      *tracing.Traces
	gathers     gathers

	stop    context.CancelFunc
	watched sync.WaitGroup
}

// retryEvery is how long Open waits between looks at a log that is not there yet.
const retryEvery = 200 * time.Millisecond

// requestTimeout bounds one request to JetStream's API.
const requestTimeout = 5 * time.Second

// lookWithin bounds what must not hold up a look at a partition: a request that was under way when
// its server went is never answered, and would wait for requestTimeout.
const lookWithin = time.Second

const (
	// maxBegun is how many publishes may be under way: far more than any ingest begins.
	maxBegun = 1 << 20
	// forgetBegun is when a publish that JetStream does not answer is forgotten; a caller that
	// waits for it has given up before.
	forgetBegun = time.Minute
)

// Close ends the watching of the log. It does not close the connection.
func (l *Log) Close() {
	l.stop()
	l.watched.Wait()
}

// Settings returns the log's settings, at most a few seconds old. Its limits and replicas may
// change; partitions and the like never do.
func (l *Log) Settings() Settings { return *l.settings.Load() }

// Partition returns the partition of a session.
func (l *Log) Partition(session string) int { return l.settings.Load().Partition(session) }

// Conn returns the connection that the log was opened on.
func (l *Log) Conn() *nats.Conn { return l.nc }

func (l *Log) readSettings(ctx context.Context) (Settings, error) {
	stream, err := l.find(ctx, 0)
	if err != nil {
		return Settings{}, apiError(err)
	}
	return settingsFrom(stream.CachedInfo().Config.Metadata)
}

// find asks for a partition's JetStream stream before the log is open. Without a leader nobody may answer.
func (l *Log) find(ctx context.Context, p int) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return l.js.Stream(ctx, streamName(p))
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
// (10028), storage (10047), resources (10023), account resources (10002), or a stream's bytes
// (10077, with a store failure).
func insufficient(code jetstream.ErrorCode) bool {
	switch code {
	case 10002, 10023, 10028, 10047, 10077:
		return true
	default:
		return false
	}
}

// linkContext is a context that ends when the connection is lost.
type linkContext struct {
	ctx context.Context
	end context.CancelFunc
}

func newLinkContext() *linkContext {
	ctx, cancel := context.WithCancel(context.Background())
	return &linkContext{ctx: ctx, end: cancel}
}

// followLink keeps l.link until ctx ends.
func (l *Log) followLink(ctx context.Context) {
	changed := l.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer l.nc.RemoveStatusListener(changed)
	// The connection may have been lost after the log was opened and before this goroutine
	// ran. Nothing announces that any more, and the context would last until the next loss.
	if !l.nc.IsConnected() {
		l.link.Load().end()
	}
	for {
		select {
		case <-ctx.Done():
			l.link.Load().end()
			return
		case status := <-changed:
			l.link.Load().end()
			if status == nats.CONNECTED {
				l.link.Store(newLinkContext())
			}
		}
	}
}

// request returns the context of a request that can be repeated. It ends when the
// connection is lost: what was under way then is never answered, and would be
// waited for until its time-out, long after the connection has come back.
func (l *Log) request(ctx context.Context) (context.Context, context.CancelFunc) {
	now := l.link.Load()
	if now == nil || now.ctx.Err() != nil {
		// There is no connection, and the client says so at once; or there is one again,
		// of which the log has yet to hear, and its loss would not be noticed.
		return context.WithTimeout(ctx, lookWithin)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(now.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// Clustered reports whether the server is one of a cluster, where a restart of
// one server begins no generation.
func (l *Log) Clustered() bool { return l.server.Clustered() }

// Servers asks all servers of the cluster who they are, as [cluster.Ping] does. The error wraps
// [ErrUnavailable].
func (l *Log) Servers(ctx context.Context, known cluster.Servers) (cluster.Servers, error) {
	there, err := cluster.Ping(ctx, l.nc, known)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return there, nil
}

// partition guards a State; changed is closed and replaced whenever it is set.
type partition struct {
	mu      sync.Mutex
	state   State
	stream  jetstream.Stream
	settled string // the server on which publishing and tailing may go on
	// awaiting is the server on which they wait for the janitor since the first look that
	// was answered, or did.
	awaiting string
	since    time.Time
	asked    uint64 // the number of looks that were begun
	shown    uint64 // the number of the look that state is from
	changed  chan struct{}
	births   births.Births
	// sent is how many bytes this program has sent, and roomUntil how many it will have sent when
	// the partition is nearly full, by the last look.
	sent, roomUntil atomic.Int64
	// unsettled is how often publishing went on without the janitor's word.
	unsettled uint64
	owned     chan struct{} // holds one token while somebody changes the configuration
	unwritten bool          // a change of it has failed, and may be shown; whoever owns it reads and sets it
}
