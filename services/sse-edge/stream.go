package edge

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

// format is how a stream writes to its client. Its methods are called by the stream's worker,
// before there is one by whoever makes the stream.
type format interface {
	// kind is the same for formats that make the same blocks of a step.
	kind() string
	// protocol says what those who watch are shown.
	protocol() inspect.Protocol
	// opening returns the first block.
	opening(ctx context.Context, from beginning) []byte
	// rewrites reports whether events are sent as event makes them, and not as the window's
	// frames. room is memory that event may use and returns.
	rewrites() bool
	event(b, room []byte, it *window.Item) (event, roomLeft []byte)
	// gaps returns the blocks of a step's gaps, and closing the last one of a step that ends
	// the stream.
	gaps(s cursor.Step) []byte
	closing(s cursor.Step) []byte
	heartbeat() []byte
	// farewell returns the last block of a stream whose client is to come back.
	farewell() []byte
}

// companion goes with a stream from its beginning to its end. Its methods are called by the
// stream's worker.
type companion interface {
	// begun is called when the worker has taken the stream, and ended once it is done with it,
	// or could not take it.
	begun()
	ended(begun bool)
	// told is called after the client received events of a step, and moved when its cursor was
	// moved to that of another connection.
	told(s cursor.Step, events int)
	moved()
	// tick is called at due, unless that is zero.
	due() time.Time
	tick(now time.Time)
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

// stream is one event stream: a reader's cursor and the connection that it is sent
// to. It belongs to its worker, and while it is away, step and err and the reader
// belong to the goroutine that it is away in.
type stream struct {
	streams   *streams
	reader    *cursor.Reader
	asked     asked
	format    format
	companion companion // nil: there is none
	conn      net.Conn
	raw       syscall.RawConn // of conn
	chunked   bool            // its blocks are chunks
	// head is what the connection begins with: the response's head and the first block.
	head []byte

	filter   *filter       // nil: all events are shown
	expires  time.Time     // when the client's token does; zero without access control
	expiring func() []byte // warns the client of that; nil: it is not warned
	revoked  func() bool   // asked with each heartbeat; nil: never
	// endsAtGap ends the stream with its first gap, ageless keeps it however old it gets, and
	// stays keeps it as long as possible when the edge stops. Of a routine stream, coming and a
	// regular end are no news.
	endsAtGap, ageless, stays, routine bool

	phase  phase
	again  bool               // its chain has changed while it was away
	cancel context.CancelFunc // of the read
	step   cursor.Step        // what the read found
	err    error              // of the read or write
	reason string             // why the worker is done with it; empty until then

	worker *worker       // empty until it has one
	sub    *subscription // to the reader's chain
	slot   int           // where in sub.streams it is
	turns  turns

	timer         int // where in the worker's timers it is
	beatAt, endAt time.Time
	retryAt       time.Time // when the log is read again; zero when it could be read
	cause         string    // why it ends at endAt: the metric's reason
	warnAt        time.Time // when the client is told that its token expires; zero when it was, or need not be

	traffic traffic
}

// newStream returns a stream, which has to be handed over or dropped.
func newStream(s *streams, r *cursor.Reader, by asked) *stream {
	return &stream{streams: s, reader: r, asked: by, turns: turns{served: true}}
}

// drop ends a stream that was not handed over.
func (st *stream) drop() {
	st.reader.Close()
	st.streams.cfg.Admission.Leave(st.asked.Visit)
}

// over reports whether the worker is done with the stream.
func (st *stream) over() bool { return st.reason != "" }

// settle returns what the client receives of a step.
func (st *stream) settle(s cursor.Step) cursor.Step {
	if st.endsAtGap && len(s.Gaps) > 0 {
		s.Items, s.More, s.Ended = nil, false, true
	}
	return s
}

// due is when the clock has something for the stream next.
func (st *stream) due() time.Time {
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
	if st.companion != nil {
		if at := st.companion.due(); !at.IsZero() && at.Before(due) {
			due = at
		}
	}
	return due
}

// openingTimeout bounds how long a client waits for its first block. It is long
// since a storm of cursors below the windows has to be read from the log.
const openingTimeout = time.Minute

// beginning is where a connection begins.
type beginning struct {
	fresh    bool   // the client has no cursor, or none that is worth anything
	resumes  bool   // it has one
	position uint64 // of the cursor
	read     bool   // the stream's step has been read
}

// hand takes over the connection. It does not keep the goroutine that calls it, with
// the buffers of the request, while the log is read.
func (st *stream) hand(conn net.Conn, from beginning) {
	s := st.streams
	st.conn = conn
	s.metrics.opened.Inc()
	s.metrics.connections.Inc()
	w := s.nextWorker()
	st.worker = w
	s.cfg.Admission.Hold() // before anything can end the stream
	go func() {
		if err := st.open(from); err != nil {
			s.reconnects(st.asked.ctx, st.reader.Place, err)
			s.refused("unavailable")
			var out outbox
			out.only(st, st.format.farewell(), true)
			_ = flush(st.conn, append([][]byte{st.head}, out.buffers...), s.cfg.WriteTimeout) // or it has gone
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
// with a cursor goes on there once what follows was read.
func (st *stream) open(from beginning) (err error) {
	r := st.reader
	ctx, cancel := context.WithTimeout(st.streams.base, openingTimeout)
	defer cancel()
	if st.raw, err = RawOf(st.conn); err != nil {
		return err
	}
	if (from.fresh || from.resumes) && !from.read {
		if st.step, err = st.first(ctx, from); err != nil {
			return err
		}
	}
	if from.fresh {
		from.position = r.ResumesAt(st.step)
	}
	st.traffic.stood = from.position
	st.logBegin(from)
	var out outbox
	out.only(st, st.format.opening(ctx, from), false)
	st.head = append(st.head, slices.Concat(out.buffers...)...)
	return nil
}

// first reads what follows the client's cursor.
func (st *stream) first(ctx context.Context, from beginning) (cursor.Step, error) {
	read := func() (cursor.Step, error) {
		if found, _, ok := st.reader.Quick(nil); ok {
			return found, nil
		}
		return st.reader.Next(ctx)
	}
	if !from.resumes {
		return read()
	}
	return st.streams.resumed(st.reader, st.asked, read)
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
func (st *stream) logBegin(from beginning) {
	s, r := st.streams, st.reader
	if !s.logger.Enabled(st.asked.ctx, slog.LevelDebug) {
		return
	}
	message := "a subscriber connects"
	if from.resumes {
		message = "a subscriber resumes"
	}
	s.logger.DebugContext(st.asked.ctx, message, "session", r.Place.Session, "stream", r.Place.Stream, "cursor", from.position) //nolint:sloglint // one of two constants
}

// logEnd writes a debug line about a stream that has ended.
func (st *stream) logEnd() {
	s, r := st.streams, st.reader
	if s.logger.Enabled(st.asked.ctx, slog.LevelDebug) {
		s.logger.DebugContext(st.asked.ctx, "a subscriber is gone", "session", r.Place.Session, "stream", r.Place.Stream, "cursor", r.Cursor, "reason", st.reason)
	}
}

// do has the stream's worker call a function.
func (st *stream) do(f func()) { st.worker.send(post{run: f}) }

// finish ends the stream as a step that ends it does. Its worker calls it, while the stream is not
// away.
func (st *stream) finish() { st.worker.tell(st, cursor.Step{Ended: true}) }
