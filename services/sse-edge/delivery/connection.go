package delivery

import (
	"context"
	"log/slog"
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/logrepeat"
	"rejoin/shared/quota"
	"rejoin/shared/tracing"
)

// logRetry is how long a stream waits when the log cannot be read.
const logRetry = 500 * time.Millisecond

// phase is what a stream does. Its worker changes it.
type phase uint8

const (
	behind   phase = iota // there may be more after its cursor
	live                  // its cursor was at the window's end when it was last looked at, and all was written
	opening               // a goroutine reads what its first block depends on
	reading               // a goroutine reads the log for it
	flushing              // a goroutine writes what the socket did not take
	closing               // likewise, and it is the last block
)

// away reports whether a goroutine has the stream.
func (p phase) away() bool { return p >= opening }

// Source is what a stream sends: that of a [cursor.Reader] or of a [cursor.Group].
type Source interface {
	// Key is the same for sources that one listener is enough for.
	Key() *window.Chain
	// Follows reports whether it is about a session. It is safe for concurrent use.
	Follows(session string) bool
	// At returns up to which sequence a session's events were sent.
	At(session string) uint64
	Listen(l window.Listener)
	Unlisten(l window.Listener)
	// Quick and Next read what follows, Quick without a wait.
	Quick(memory []window.Item) (cursor.Step, []window.Item, bool)
	Next(ctx context.Context) (cursor.Step, error)
	// GoBack moves back to the end of what a client was told of a step. Kept is how many bytes of the rest
	// it keeps that do not count yet.
	GoBack(s cursor.Step, told int)
	Kept() int
	// Release drops the memory of the last step, Close everything.
	Release()
	Close()
}

// Stream is one event stream: a source and the connection that it is sent
// to. It belongs to its worker, and while it is away, step and err and the reader
// belong to the goroutine that it is away in.
type Stream struct {
	streams   *Streams
	source    Source
	Reader    *cursor.Reader // the source, or, for a group, one that says how its client came alone
	Request   Request
	Format    Format
	Companion Companion // nil: there is none
	conn      net.Conn
	raw       syscall.RawConn // of conn
	Chunked   bool            // its blocks are chunks
	// Head is written before anything else: the response's head, later the rest of a heartbeat. first is the
	// first block.
	Head, first []byte

	Filter   *Filter       // nil: all events are shown
	Expires  time.Time     // when the client's token does; zero without access control
	expiring func() []byte // warns the client of that; nil: it is not warned
	Revoked  func() bool   // asked with each heartbeat; nil: never
	// Continues says that the client receives the rest on another connection: the stream ends before
	// a proxy cuts it. HandsOver says that the last block holds the client's cursor, and has to be
	// written.
	Continues, HandsOver bool
	// EndsAtGap ends the stream with its first gap, Ageless keeps it however old it gets, and
	// Stays keeps it as long as possible when the edge stops. Of a Routine stream, coming and a
	// regular end are no news.
	EndsAtGap, Ageless, Stays, Routine bool

	phase    phase
	again    bool               // its chain has changed while it was away
	owesBeat bool               // a heartbeat was due while it was away in a read
	owesWarn bool               // the warning that its token expires was due while it was away
	cancel   context.CancelFunc // of the read
	Step     cursor.Step        // what the read found
	err      error              // of the read or write
	reason   string             // why the worker is done with it; empty until then

	worker   *worker        // empty until it has one
	listener *chainListener // to the reader's chain
	slot     int            // where in listener.streams it is
	Turns    turns
	// written is the cursor up to which the client was sent all events and gaps. The reader's is ahead of it while a
	// step is read and written, and stays so if that fails.
	written uint64

	timer         int // where in the worker's timers it is
	beatAt, endAt time.Time
	retryAt       time.Time // when the log is read again; zero when it could be read
	cause         string    // why it ends at endAt: the metric's reason
	warnAt        time.Time // when the client is warned that its token expires; zero when it was, or need not be

	// held counts in the memory of all clients what the stream has in no window: a step until it was written, and
	// what a full socket has left of it.
	held *quota.Part
	most int64 // as how much it counts at most

	traffic traffic
}

// NewStream returns a stream, which has to be handed over or dropped.
func NewStream(s *Streams, r *cursor.Reader, by Request) *Stream {
	st := &Stream{streams: s, source: r, Reader: r, Request: by, Turns: turns{served: true}, written: r.Cursor, held: s.cfg.Memory.Part(by.Client), most: math.MaxInt64}
	if pool := s.cfg.Memory; pool != nil {
		st.most = pool.Share()
	}
	r.Hold = func(bytes int) bool { return st.hold(2 * bytes) } // as they came, and as frames
	r.Await = func(ctx context.Context, bytes int) error { return st.await(ctx, 2*bytes) }
	return st
}

// hold counts so many bytes for the stream instead of those before, and reports whether there is memory for them.
// If there is none, nothing counts. More than a client's share counts as the share: else a larger event would never
// be sent.
func (st *Stream) hold(bytes int) bool {
	if !st.held.Resize(min(int64(bytes), st.most)) {
		st.held.Release()
		return false
	}
	return true
}

// await is hold that waits until there is memory. The error is the context's.
func (st *Stream) await(ctx context.Context, bytes int) error {
	st.streams.Waits(st.Request.Ctx, "an event stream waits for the log", st.Reader.Place, cursor.ErrNoMemory)
	return st.held.Wait(ctx, min(int64(bytes), st.most))
}

// DropStep drops the step that was read before the stream was handed over.
func (st *Stream) DropStep() {
	st.Step = cursor.Step{} // it may hold segments of the window
	st.source.Release()
	st.held.Release()
}

// Drop ends a stream that was not handed over.
func (st *Stream) Drop() {
	st.source.Close()
	st.held.Release()
	st.streams.cfg.Admission.Leave(st.Request.Visit)
}

// IsOver reports whether the worker is done with the stream.
func (st *Stream) IsOver() bool { return st.reason != "" }

// IsAway reports whether a goroutine reads or writes for the stream.
func (st *Stream) IsAway() bool { return st.phase.away() }

// UpToGap returns what the client receives of a step: nothing after a gap, if the stream ends there. The cursor moves
// back to the gap.
func (st *Stream) UpToGap(s cursor.Step) cursor.Step {
	if st.EndsAtGap && len(s.Gaps) > 0 {
		st.source.GoBack(s, 0)
		s.Items, s.More, s.Ended = nil, false, true
	}
	return s
}

// allWritten notes that the client was sent everything up to the cursor, unless a gap is still to be reported.
func (st *Stream) allWritten() {
	if len(st.Reader.Pending) == 0 {
		st.written = st.Reader.Cursor
	}
}

// due is when the clock has something for the stream next.
func (st *Stream) due() time.Time {
	due := st.beatAt
	if st.endAt.Before(due) {
		due = st.endAt
	}
	if !st.retryAt.IsZero() && st.retryAt.Before(due) {
		due = st.retryAt
	}
	if !st.warnAt.IsZero() && st.warnAt.Before(due) {
		due = st.warnAt
	}
	if st.Companion != nil {
		if at := st.Companion.Due(); !at.IsZero() && at.Before(due) {
			due = at
		}
	}
	return due
}

// logBegin writes a debug line about a stream that begins; cursor is where.
func (st *Stream) logBegin(from Beginning) {
	s, r := st.streams, st.Reader
	if !s.cfg.Logger.Enabled(st.Request.Ctx, slog.LevelDebug) {
		return
	}
	message := "a subscriber connects"
	if from.Resumes {
		message = "a subscriber resumes"
	}
	s.cfg.Logger.DebugContext(st.Request.Ctx, message, "session", r.Place.Session, "stream", r.Place.Stream, "cursor", from.Position) //nolint:sloglint // one of two constants
}

// logEnd writes a debug line about a stream that has ended.
func (st *Stream) logEnd() {
	s, r := st.streams, st.Reader
	if s.cfg.Logger.Enabled(st.Request.Ctx, slog.LevelDebug) {
		s.cfg.Logger.DebugContext(st.Request.Ctx, "a subscriber is gone", "session", r.Place.Session, "stream", r.Place.Stream, "cursor", r.Cursor, "reason", st.reason)
	}
}

// traffic is what a worker notes of a stream for those who watch: 40 B with its number.
type traffic struct {
	opened int64 // Unix time in milliseconds
	events uint64
	sentAt int64  // when the last event was written, as opened; 0 for never
	stood  uint64 // where the cursor stood when the client came, or when a read of the log began
}

// wrote notes that events were written.
func (t *traffic) wrote(events int, now int64) {
	if events > 0 {
		t.events += uint64(events)
		t.sentAt = now
	}
}

// Config configures the event streams of an edge.
type Config struct {
	// Base ends all streams when it is done.
	Base context.Context //nolint:containedctx // of the edge
	// Admission has let the clients in, and is left when their streams end.
	Admission *admission.Admission
	Logger    *slog.Logger
	Metrics   prometheus.Registerer
	Traces    *tracing.Traces
	// Memory is what clients take memory of; nil bounds nothing.
	Memory *quota.Pool
	// MaxConnections is how many streams may be open; it is shown as a metric.
	MaxConnections int
	// Heartbeat, Retry, MaxAge, WriteTimeout and Drain are the flags of these names, RequestLimit
	// is --proxy-request-limit.
	Heartbeat, Retry, MaxAge, RequestLimit, WriteTimeout, Drain time.Duration
	// SentAway reports why a client is sent away with a reconnection time. It must not let clients decide how
	// much is logged.
	SentAway func(by Request, at window.Place, why error)
	// Retention says how long events are retained now; not positive: for as long as there is
	// room.
	Retention func() time.Duration
}

// Streams are the event streams of an edge: workers that share them out, and what is counted
// and remembered of them.
type Streams struct {
	cfg     Config
	drain   chan struct{} // closed when the edge begins to stop
	waits   *logrepeat.Log
	Metrics *Metrics
	History *History

	workers []*worker
	next    atomic.Uint64 // counts the streams, to share them out
	numbers atomic.Uint64 // of those that have begun
}

func (s *Streams) nextWorker() *worker {
	return s.workers[s.next.Add(1)%uint64(len(s.workers))]
}

// turns are what a stream has to know while several connections take turns: the newest one receives
// the messages. It belongs to the stream's worker, but for quiet.
type turns struct {
	quiet atomic.Bool // another connection receives the messages
	// Behind says that the client came without a cursor: it continues where the connection
	// before it is.
	Behind bool
	// served says that it had its turn once.
	served bool
	// next is where to continue when it is the stream's turn again, once it has been quiet.
	next   *string
	rested chan<- string // takes its cursor once it is back
}

// chainListener is one worker's [window.Listener] of one chain: the chain's changes queue it.
type chainListener struct {
	worker  *worker
	chain   *window.Chain
	queued  atomic.Bool // it is in the worker's queue
	streams []*Stream   // the worker's own
}
