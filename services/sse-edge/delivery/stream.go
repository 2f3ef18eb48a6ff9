package delivery

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/inspect"
)

// logRetry is how long a stream waits when the log cannot be read.
const logRetry = 500 * time.Millisecond

// Format is how a stream writes to its client. Its methods are called by the stream's worker,
// before that by the request that makes the stream.
type Format interface {
	// Kind is the same for formats that make the same blocks of a step.
	Kind() string
	// Protocol says what those who watch are shown.
	Protocol() inspect.Protocol
	// Opening returns the first block.
	Opening(ctx context.Context, from Beginning) []byte
	// Rewrites reports whether events are sent as Event makes them, and not as the window's
	// frames. room is memory that Event may use and returns.
	Rewrites() bool
	Event(b, room []byte, it *window.Item) (event, roomLeft []byte)
	// Gaps returns the blocks of a step's gaps, and Closing the last one of a step that ends
	// the stream.
	Gaps(s cursor.Step) []byte
	Closing(s cursor.Step) []byte
	Heartbeat() []byte
	// Farewell returns the last block of a stream whose client is to come back.
	Farewell() []byte
}

// Companion goes with a stream from its beginning to its end. Its methods are called by the
// stream's worker.
type Companion interface {
	// Begun is called when the worker has taken the stream, and Ended once it is done with it,
	// or could not take it.
	Begun()
	Ended(begun bool)
	// Told is called after the client received events of a step, and Moved when its cursor was
	// moved to that of another connection.
	Told(s cursor.Step, events int)
	Moved()
	// Tick is called at Due, unless that is zero.
	Due() time.Time
	Tick(now time.Time)
}

// phase is what a stream does. Its worker changes it.
type phase uint8

const (
	behind   phase = iota // there may be more after its cursor
	live                  // its cursor was at the window's end when it was last looked at, and all was written
	reading               // a goroutine reads the log for it
	flushing              // a goroutine writes what the socket did not take
	closing               // likewise, and it is the last block
)

// away reports whether a goroutine has the stream.
func (p phase) away() bool { return p >= reading }

// Stream is one event stream: a reader's cursor and the connection that it is sent
// to. It belongs to its worker, and while it is away, step and err and the reader
// belong to the goroutine that it is away in.
type Stream struct {
	streams   *Streams
	Reader    *cursor.Reader
	Request   Request
	Format    Format
	Companion Companion // nil: there is none
	conn      net.Conn
	raw       syscall.RawConn // of conn
	Chunked   bool            // its blocks are chunks
	// Head is what the connection begins with: the response's head and the first block.
	Head []byte

	Filter   *Filter       // nil: all events are shown
	Expires  time.Time     // when the client's token does; zero without access control
	expiring func() []byte // warns the client of that; nil: it is not warned
	Revoked  func() bool   // asked with each heartbeat; nil: never
	// EndsAtGap ends the stream with its first gap, Ageless keeps it however old it gets, and
	// Stays keeps it as long as possible when the edge stops. Of a Routine stream, coming and a
	// regular end are no news.
	EndsAtGap, Ageless, Stays, Routine bool

	phase  phase
	again  bool               // its chain has changed while it was away
	cancel context.CancelFunc // of the read
	Step   cursor.Step        // what the read found
	err    error              // of the read or write
	reason string             // why the worker is done with it; empty until then

	worker *worker       // empty until it has one
	sub    *subscription // to the reader's chain
	slot   int           // where in sub.streams it is
	Turns  turns

	timer         int // where in the worker's timers it is
	beatAt, endAt time.Time
	retryAt       time.Time // when the log is read again; zero when it could be read
	cause         string    // why it ends at endAt: the metric's reason
	warnAt        time.Time // when the client is warned that its token expires; zero when it was, or need not be

	traffic traffic
}

// NewStream returns a stream, which has to be handed over or dropped.
func NewStream(s *Streams, r *cursor.Reader, by Request) *Stream {
	return &Stream{streams: s, Reader: r, Request: by, Turns: turns{served: true}}
}

// Drop ends a stream that was not handed over.
func (st *Stream) Drop() {
	st.Reader.Close()
	st.streams.cfg.Admission.Leave(st.Request.Visit)
}

// Over reports whether the worker is done with the stream.
func (st *Stream) Over() bool { return st.reason != "" }

// IsAway reports whether a goroutine reads or writes for the stream.
func (st *Stream) IsAway() bool { return st.phase.away() }

// Settle returns what the client receives of a step.
func (st *Stream) Settle(s cursor.Step) cursor.Step {
	if st.EndsAtGap && len(s.Gaps) > 0 {
		s.Items, s.More, s.Ended = nil, false, true
	}
	return s
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

// openingTimeout bounds how long a client waits for its first block. It is long
// since a storm of cursors below the windows has to be read from the log.
const openingTimeout = time.Minute

// Beginning is where a connection begins.
type Beginning struct {
	Fresh    bool   // the client has no cursor, or none that is worth anything
	Resumes  bool   // it has one
	Position uint64 // of the cursor
	Read     bool   // the stream's step has been read
}

// Hand takes over the connection. It does not keep the goroutine that calls it, with
// the buffers of the request, while the log is read.
func (st *Stream) Hand(conn net.Conn, from Beginning) {
	s := st.streams
	st.conn = conn
	s.Metrics.Opened.Inc()
	s.Metrics.Connections.Inc()
	w := s.nextWorker()
	st.worker = w
	s.cfg.Admission.Hold() // before anything can end the stream
	go func() {
		if err := st.open(from); err != nil {
			s.Reconnects(st.Request.Ctx, st.Reader.Place, err)
			s.CountRefused("unavailable")
			var out outbox
			out.only(st, st.Format.Farewell(), true)
			_ = flush(st.conn, append([][]byte{st.Head}, out.buffers...), s.cfg.WriteTimeout) // or it has gone
			_ = st.conn.Close()
			st.reason = "failed"
			w.finish(st, false)
			s.cfg.Admission.Release()
			return
		}
		w.post(st, newsBegun)
		go func() { // with a small stack
			defer s.cfg.Admission.Release()
			waitUntilGone(st.conn)
			w.post(st, newsGone)
		}()
	}()
}

// open reads what follows the client's cursor, and makes the first block: where a
// client without a cursor stands is known once its first event is, and whether one
// with a cursor continues there once what follows was read.
func (st *Stream) open(from Beginning) (err error) {
	r := st.Reader
	ctx, cancel := context.WithTimeout(st.streams.base, openingTimeout)
	defer cancel()
	if st.raw, err = RawOf(st.conn); err != nil {
		return err
	}
	if (from.Fresh || from.Resumes) && !from.Read {
		if st.Step, err = st.first(ctx, from); err != nil {
			return err
		}
	}
	if from.Fresh {
		from.Position = r.ResumesAt(st.Step)
	}
	st.traffic.stood = from.Position
	st.logBegin(from)
	var out outbox
	out.only(st, st.Format.Opening(ctx, from), false)
	st.Head = append(st.Head, slices.Concat(out.buffers...)...)
	return nil
}

// first reads what follows the client's cursor.
func (st *Stream) first(ctx context.Context, from Beginning) (cursor.Step, error) {
	read := func() (cursor.Step, error) {
		if found, _, ok := st.Reader.Quick(nil); ok {
			return found, nil
		}
		return st.Reader.Next(ctx)
	}
	if !from.Resumes {
		return read()
	}
	return st.streams.resumed(st.Reader, st.Request, read)
}

// RawOf returns what a connection is to the operating system.
func RawOf(conn net.Conn) (syscall.RawConn, error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

func reasonToEnd(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "slow"
	}
	return "gone"
}

// waitUntilGone returns when the client has closed the connection. A client has
// nothing to say on an event stream; what it says is thrown away.
func waitUntilGone(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Time{}) // fails on a closed connection, as Read does
	var b [64]byte
	for {
		if _, err := conn.Read(b[:]); err != nil {
			return
		}
	}
}

// flush writes to a connection, and waits for as long as there is progress.
func flush(conn net.Conn, rest net.Buffers, timeout time.Duration) error {
	for len(rest) > 0 {
		if err := conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		n, err := rest.WriteTo(conn)
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return err
		}
	}
	return conn.SetWriteDeadline(time.Time{})
}

// logBegin writes a debug line about a stream that begins; cursor is where.
func (st *Stream) logBegin(from Beginning) {
	s, r := st.streams, st.Reader
	if !s.logger.Enabled(st.Request.Ctx, slog.LevelDebug) {
		return
	}
	message := "a subscriber connects"
	if from.Resumes {
		message = "a subscriber resumes"
	}
	s.logger.DebugContext(st.Request.Ctx, message, "session", r.Place.Session, "stream", r.Place.Stream, "cursor", from.Position) //nolint:sloglint // one of two constants
}

// logEnd writes a debug line about a stream that has ended.
func (st *Stream) logEnd() {
	s, r := st.streams, st.Reader
	if s.logger.Enabled(st.Request.Ctx, slog.LevelDebug) {
		s.logger.DebugContext(st.Request.Ctx, "a subscriber is gone", "session", r.Place.Session, "stream", r.Place.Stream, "cursor", r.Cursor, "reason", st.reason)
	}
}

// Do has the stream's worker call a function.
func (st *Stream) Do(f func()) { st.worker.send(post{run: f}) }

// Finish ends the stream as a step that ends it does. Its worker calls it, while the stream is not
// away.
func (st *Stream) Finish() { st.worker.tell(st, cursor.Step{Ended: true}) }
