// Package eventlog is the log: the only package that reads and writes its JetStream
// streams. DESIGN.md explains the terms.
//
// A log is P JetStream streams, its partitions, named MCP_0 to MCP_<P-1>. The
// metadata of MCP_0 holds the settings of the whole log (the number of partitions,
// the retention limits, the layout's version); the metadata of each partition holds
// its generations, its servers and the damage that a janitor found.
//
//	Create, Open, OpenToShow   the log, its settings, and a look at each partition (State)
//	Publish, Series       events, each fenced on the end of its stream; births
//	AwaitGeneration       for callers that publish straight to JetStream
//	OpenSession, EndStream, EndSession, ClearStream   control entries
//	Tail, Scan, Read      entries, by one ordered consumer each; a Feed shares one
//	LossesAfter           the losses after a cursor, by trims, floor and births
//	BeginGeneration, Announce, Rewrite, Delete, Purge, MakeRoom, SetLimits, SetChecked   for the acting janitor alone
//
// A [Log] is safe for concurrent use. It has one goroutine, and in a cluster one for each fence
// and each series that events wait for; [Log.Close] waits for these.
package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/clocks"
	"rejoin/shared/eventlog/cluster"
	"rejoin/shared/logrepeat"
	"rejoin/shared/natsconn"
	"rejoin/shared/tracing"
)

// Log is an open log.
//
//	Create, Open ──▶ Log ──starts──▶ watch: one goroutine, refreshes each
//	                  │              partition's State, ends in Close
//	                  ├─ Publish, Series, …   the caller's goroutine, and in a cluster one for
//	                  │                       each fence and each series, while events wait
//	                  ├─ EndSession           the caller's, and up to 256 for its streams
//	                  ├─ Tail                 the caller's goroutine and one of nats.go
//	                  └─ Read, Delete, …      the caller's goroutine
type Log struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	log *slog.Logger
	// lookTrouble logs failed looks at partitions, which are tried again soon.
	lookTrouble *logrepeat.Log
	settings    atomic.Pointer[Settings]
	creator     bool
	shows       bool // it reads no entries
	parts       []*partition
	feed        *Feed
	server      *natsconn.Server
	traces      *tracing.Traces
	gathers     gathers
	arrivals    arrivals
	openLife    atomic.Pointer[OpenLife] // nil for none
	beginWithin time.Duration            // bounds BeginGeneration: lookWithin but in tests
	awaits      atomic.Int64             // see AwaitJanitor; 0 for the defaults
	now         func() clocks.Instant

	converted context.Context //nolint:containedctx // see Converted
	convert   context.CancelCauseFunc

	stop    context.CancelFunc
	watched sync.WaitGroup
}

// retryEvery is how long Open waits between looks at a log that is not there yet.
const retryEvery = 200 * time.Millisecond

// requestTimeout bounds one request to JetStream's API.
const requestTimeout = 5 * time.Second

// lookWithin bounds requests that must not hold up a look at a partition: a request that was in flight
// when its server stopped is never answered, and would wait for requestTimeout.
const lookWithin = time.Second

// Close ends the watching of the log. It does not close the connection.
func (l *Log) Close() {
	l.stop()
	l.watched.Wait()
}

// Converted returns a context that ends when a later version of the program has converted the log to another version
// of its layout. The cause wraps [ErrMismatch]. From then on nothing is stored, and no tail begins.
func (l *Log) Converted() context.Context { return l.converted }

// Settings returns the log's settings, at most a few seconds old. Its limits and replicas may
// change; partitions and the like never do.
func (l *Log) Settings() Settings { return *l.settings.Load() }

// Partition returns the partition of a session.
func (l *Log) Partition(session string) int { return l.settings.Load().Partition(session) }

// OpenLife returns the life of an open session by the registry, "" for none. Its errors are
// taken for temporary.
type OpenLife func(ctx context.Context, session string) (life string, err error)

// AskRegistry has the log ask the registry for the life of a session whose opening it does not hold, before a
// stream of the session begins. The first call counts.
func (l *Log) AskRegistry(ask OpenLife) { l.openLife.CompareAndSwap(nil, &ask) }

// Conn returns the connection that the log was opened on.
func (l *Log) Conn() *nats.Conn { return l.nc }

// Share lets the log's tails share their entries through f. It is called before the
// first [Log.Tail].
func (l *Log) Share(f *Feed) { l.feed = f }

// Clustered reports whether the server is one of a cluster, where a restart of
// one server begins no generation.
func (l *Log) Clustered() bool { return l.server.Clustered() }

// Servers asks all servers of the cluster for their names and IDs, as [cluster.Ping] does; those that hold the log are
// known, too. The error wraps [ErrUnavailable].
func (l *Log) Servers(ctx context.Context, known cluster.Servers) (cluster.Servers, error) {
	all := cluster.Servers{}
	maps.Copy(all, known)
	for p := range l.parts {
		state, _ := l.State(p)
		for _, name := range state.holders {
			all[name] = "" // its ID does not matter
		}
	}
	return l.ping(ctx, all, 1)
}

func (l *Log) ping(ctx context.Context, known cluster.Servers, least int) (cluster.Servers, error) {
	began := time.Now()
	there, err := cluster.Ping(ctx, l.nc, known, least)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	l.arrivals.note(there, began)
	return there, nil
}

// streamName returns the name of a partition's JetStream stream.
func streamName(p int) string { return "MCP_" + strconv.Itoa(p) }

// streamSubject returns the filter of all subjects of a partition.
func streamSubject(p int) string { return "mcp." + strconv.Itoa(p) + ".>" }

// stream returns the client's handle of a partition, which is good for requests by name.
func (l *Log) stream(p int) jetstream.Stream {
	part := l.parts[p]
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.stream
}

// repeat makes a request that can be repeated, as [natsconn.Server.Repeat] does.
func (l *Log) repeat(ctx context.Context, request func(ctx context.Context) error) error {
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	return l.server.Repeat(ctx, request)
}

// get asks the partition's leader for the first message at or after a sequence.
func (l *Log) get(ctx context.Context, p int, sequence uint64, opts ...jetstream.GetMsgOpt) (msg *jetstream.RawStreamMsg, err error) {
	err = l.repeat(ctx, func(ctx context.Context) error {
		msg, err = l.stream(p).GetMsg(ctx, sequence, opts...)
		return err
	})
	return msg, apiError(err)
}

// newestMessage asks the partition's leader for the newest message on a subject.
func (l *Log) newestMessage(ctx context.Context, p int, subject string) (msg *jetstream.RawStreamMsg, err error) {
	err = l.repeat(ctx, func(ctx context.Context) error {
		msg, err = l.stream(p).GetLastMsgForSubject(ctx, subject)
		return err
	})
	return msg, apiError(err)
}

// newest is newestMessage, and nil where there is none.
func (l *Log) newest(ctx context.Context, p int, subject string) (*jetstream.RawStreamMsg, error) {
	msg, err := l.newestMessage(ctx, p, subject)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return msg, err
}

// stopReader stops a reader of a partition. The server removes a consumer that cannot be stopped.
func (l *Log) stopReader(p int, r *natsconn.Reader) {
	if err := r.Stop(); err != nil {
		l.log.Debug("a consumer is left to the server", "partition", p, "error", err)
	}
}

// tailPull is more at a time than the default of 500: in a backfill each request costs a round trip.
const tailPull = 4096
