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

// logRetry is how long a connection waits when the log cannot be read.
const logRetry = 500 * time.Millisecond

// phase is the state of a connection. Its worker changes it. The order counts: those from opening on have a goroutine,
// and those from flushing on have unsent bytes.
type phase uint8

const (
	behind   phase = iota // there may be events after its cursor
	live                  // its cursor was at the window's end when that was last read, and all was written
	opening               // a goroutine reads for its first block
	reading               // a goroutine reads the log for it
	flushing              // a goroutine writes the bytes that the socket did not take
	closing               // likewise, and it is the last block
)

// away reports whether a goroutine has the connection.
func (p phase) away() bool { return p >= opening }

// Source has the events that a connection sends: those of a [cursor.Reader] or of a [cursor.Group].
type Source interface {
	// Key is the same for sources that can share one listener.
	Key() *window.Chain
	// Follows reports whether a session is one of the source's. It is safe for concurrent use.
	Follows(session string) bool
	// At returns the sequence up to which a session's events were sent.
	At(session string) uint64
	// CursorID returns the cursor as an event ID; empty while a gap has to be reported first.
	CursorID() string
	Listen(l window.Listener)
	Unlisten(l window.Listener)
	// Quick and Next read the next events, Quick without a wait.
	Quick(memory []window.Item) (cursor.Step, []window.Item, bool)
	Next(ctx context.Context) (cursor.Step, error)
	// GoBack moves back to the end of the events of a step that a client was sent. Kept is how many bytes of
	// the unsent ones it keeps that do not count yet.
	GoBack(s cursor.Step, told int)
	Kept() int
	// Release drops the memory of the last step, Close everything.
	Release()
	Close()
}

// Connection is the response to a client that reads a stream: a source, and the socket that it is sent
// to. It belongs to its worker, and while it is away, Step and err and the reader
// belong to the goroutine that it is away in.
type Connection struct {
	of        *Connections
	source    Source
	Reader    *cursor.Reader // the source; for a group, a reader that has only its client's Came
	Request   Request
	Format    Format
	Companion Companion
	conn      net.Conn
	raw       syscall.RawConn // of conn
	Chunked   bool            // its blocks are chunks
	// Head is written first: the response's head, later the remaining bytes of a heartbeat. first is the
	// first block.
	Head, first []byte

	Filter   *Filter       // nil: all events are shown
	Expires  time.Time     // when the client's token does; zero without access control
	expiring func() []byte // the block that warns the client of that; nil: it is not warned
	Revoked  func() bool   // asked with each heartbeat; nil: never
	// Continues says that the client receives the remaining events on another connection: this one ends
	// before a proxy cuts it. HandsOver says that the last block holds the client's cursor, and has to be
	// written.
	Continues, HandsOver bool
	// EndsAtGap ends the connection with its first gap, Ageless keeps it however old it gets, and
	// Stays keeps it as long as possible when the edge stops. The history does not note the beginning and
	// the regular end of a Routine connection.
	EndsAtGap, Ageless, Stays, Routine bool

	phase     phase
	again     bool               // its chain has changed while it was away
	owesBeat  bool               // a heartbeat was due while it was away in a read
	owesWarn  bool               // the warning that its token expires was due while it was away
	cancel    context.CancelFunc // of the read
	Step      cursor.Step        // the result of the read
	err       error              // of the read or write
	endReason string             // the reason of its end; empty until then

	worker   *worker        // empty until it has one
	listener *chainListener // to the reader's chain
	slot     int            // its index in listener.connections
	Turns    turns
	// written is the cursor up to which the client was sent all events and gaps. The reader's is ahead of it while a
	// step is read and written, and stays so if that fails.
	written uint64

	timer         int // its index in the worker's timers
	beatAt, endAt time.Time
	retryAt       time.Time // when the log is read again; zero when it could be read
	endAtReason   string    // of an end at endAt: the metric's reason
	warnAt        time.Time // when the client is warned that its token expires; zero when it was, or need not be

	// held counts, in the memory of all clients, the connection's bytes that are in no window: a step until it was
	// written, and then the bytes of it that a full socket did not take.
	held *quota.Part
	most int64 // the most that it counts, in bytes

	traffic traffic
}

// NewConnection returns a connection, which has to be handed over or dropped.
func NewConnection(s *Connections, r *cursor.Reader, by Request) *Connection {
	c := &Connection{of: s, source: r, Reader: r, Request: by, Companion: noCompanion{}, Turns: turns{served: true}, written: r.Cursor, held: s.cfg.Memory.Part(by.Client), most: math.MaxInt64}
	if pool := s.cfg.Memory; pool != nil {
		c.most = pool.Share()
	}
	r.Hold = func(bytes int) bool { return c.hold(2 * bytes) } // as read, and as frames
	r.Await = func(ctx context.Context, bytes int) error { return c.await(ctx, 2*bytes) }
	return c
}

// hold counts so many bytes for the connection instead of those before, and reports whether there is memory for them.
// If there is none, nothing counts. More than a client's share counts as the share: else a larger event would never
// be sent.
func (c *Connection) hold(bytes int) bool {
	if !c.held.Resize(min(int64(bytes), c.most)) {
		c.held.Release()
		return false
	}
	return true
}

// await is hold that waits until there is memory. The error is the context's.
func (c *Connection) await(ctx context.Context, bytes int) error {
	c.of.Waits(c.Request.Ctx, "an event stream waits for the log", c.Reader.Place, cursor.ErrNoMemory)
	return c.held.Wait(ctx, min(int64(bytes), c.most))
}

// DropStep drops the step that was read before the connection was handed over.
func (c *Connection) DropStep() {
	c.Step = cursor.Step{} // it may hold segments of the window
	c.source.Release()
	c.held.Release()
}

// Drop ends a connection that was not handed over.
func (c *Connection) Drop() {
	c.source.Close()
	c.held.Release()
	c.of.cfg.Admission.Leave(c.Request.Visit)
}

// IsOver reports whether the worker is done with the connection.
func (c *Connection) IsOver() bool { return c.endReason != "" }

// IsAway reports whether a goroutine reads or writes for the connection.
func (c *Connection) IsAway() bool { return c.phase.away() }

// UpToGap returns the part of a step that the client receives: nothing after a gap, if the connection ends there. The
// cursor moves back to the gap.
func (c *Connection) UpToGap(s cursor.Step) cursor.Step {
	if c.EndsAtGap && len(s.Gaps) > 0 {
		c.source.GoBack(s, 0)
		s.Items, s.More, s.Ended = nil, false, true
	}
	return s
}

// allWritten notes that the client was sent all events up to the cursor, unless a gap is still to be reported.
func (c *Connection) allWritten() {
	if len(c.Reader.Pending) == 0 {
		c.written = c.Reader.Cursor
	}
}

// due returns when the worker next has to act on the connection.
func (c *Connection) due() time.Time {
	due := c.beatAt
	if c.endAt.Before(due) {
		due = c.endAt
	}
	if !c.retryAt.IsZero() && c.retryAt.Before(due) {
		due = c.retryAt
	}
	if !c.warnAt.IsZero() && c.warnAt.Before(due) {
		due = c.warnAt
	}
	if at := c.Companion.Due(); !at.IsZero() && at.Before(due) {
		due = at
	}
	return due
}

// log writes a debug line about the connection.
func (c *Connection) log(message string, cursor uint64, reason string) {
	if log, at := c.of.cfg.Logger, c.Reader.Place; log.Enabled(c.Request.Ctx, slog.LevelDebug) {
		log.DebugContext(c.Request.Ctx, message, "session", at.Session, "stream", at.Stream, "cursor", cursor, "reason", reason) //nolint:sloglint // one of few constants
	}
}

// traffic is a worker's record of a connection, for operators: 40 B with its number.
type traffic struct {
	opened int64 // Unix time in milliseconds
	events uint64
	sentAt int64  // when the last event was written, as opened; 0 for never
	stood  uint64 // the cursor when the connection began, or when a read of the log began
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
	// Base ends all connections when it is done.
	Base context.Context //nolint:containedctx // of the edge
	// Admission has let the clients in, and is left when their connections end.
	Admission *admission.Admission
	Logger    *slog.Logger
	Metrics   prometheus.Registerer
	Traces    *tracing.Traces
	// Memory bounds the memory of the clients; nil bounds nothing.
	Memory *quota.Pool
	// MaxConnections is how many connections may be open; it is shown as a metric.
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

// Connections are the event streams of an edge: workers that share them out, their metrics and
// their history.
type Connections struct {
	cfg     Config
	drain   chan struct{} // closed when the edge begins to stop
	waits   *logrepeat.Log
	Metrics *Metrics
	History *History

	workers []*worker
	next    atomic.Uint64 // counts the connections, to share them out
	numbers atomic.Uint64 // of those that have begun
}
