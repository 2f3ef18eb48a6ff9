package edge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"rejoin/services/sse-edge/cursor"

	"rejoin/services/sse-edge/window"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// One step of the cursor loop: as many frames as one write may carry.
const (
	stepEvents = 1024
	stepBytes  = 256 << 10
)

// logRetry is how long a stream waits when the log cannot be read.
const logRetry = 500 * time.Millisecond

// stream answers with an event stream. Trouble that will pass is a 200 that ends
// at once with a reconnection time, since anything else stops an EventSource for good.
func (s *Service) stream(c *fiber.Ctx, req request) error {
	by, err := s.letIn(c, req.at.Session)
	if err != nil {
		return s.sendLater(c)
	}
	handedOver := false
	defer func() {
		if !handedOver {
			s.admitted.Leave(by.Visit)
		}
	}()
	r, err := s.open(req, window.Limits{Events: stepEvents, Bytes: stepBytes})
	if problem := web.AsProblem(err); err != nil && problem.Code == web.CodeUnavailable {
		s.comesBack(by.ctx, req.at, err)
		return s.later(c, "unavailable")
	}
	if err != nil {
		return err
	}
	defer func() {
		if !handedOver {
			r.Close()
		}
	}()
	if r.Finished() {
		return c.SendStatus(fiber.StatusNoContent)
	}
	st := &stream{service: s, reader: r, asked: by, envelope: req.envelope, filter: req.filter, expires: req.expires, guest: req.guest}
	from := beginning{fresh: r.Fresh, resumes: req.start.After != "", position: r.Cursor, read: req.onGapError}
	if req.onGapError {
		if st.step, err = s.poll(s.base, r, 0); err != nil {
			s.comesBack(by.ctx, req.at, err)
			return s.later(c, "unavailable")
		}
		if len(st.step.Gaps) > 0 {
			s.told(r, st.step, 0, by)
			return goneProblem(st.step.Gaps[0])
		}
	}
	st.head = responseHead(c, st.chunked)
	handedOver = true
	c.Context().HijackSetNoResponse(true)
	c.Context().Hijack(func(conn net.Conn) { st.hand(conn, from) })
	return nil
}

// clientAddress is what a request's client counts as.
func (s *Service) clientAddress(c *fiber.Ctx) netip.Addr {
	return web.Counted(s.cfg.Clients.Address(c))
}

// stream is one event stream: a reader's cursor and the connection that it is sent
// to. It belongs to its worker, and while it is away, step and err and the reader
// belong to the goroutine that it is away in.
type stream struct {
	service  *Service
	reader   *cursor.Reader
	asked    asked
	conn     net.Conn
	raw      syscall.RawConn // of conn
	envelope bool
	filter   *filter
	mcp      *mcpForm    // nil on /v1
	quiet    atomic.Bool // another connection gets the messages; its worker changes it
	chunked  bool        // its blocks are chunks
	// head is what the connection begins with: the response's head and the first block.
	head []byte

	away     bool               // a goroutine reads for it, or writes to it
	flushing bool               // it is the latter
	again    bool               // its chain has changed meanwhile
	waits    bool               // its cursor was at the window's end when it was last looked at, and all was written
	cancel   context.CancelFunc // of the read
	step     cursor.Step        // what the read found
	err      error              // of the read or write
	ended    bool               // what is being flushed is the last block
	over     bool               // the worker is done with it
	reason   string             // why

	worker *worker       // of a stream of MCP
	rested chan<- string // takes where it stands once it is back

	sub  *subscription // to the reader's chain
	slot int           // where in sub.streams it is

	timer         int // where in the worker's timers it is
	beatAt, endAt time.Time
	retryAt       time.Time // when the log is read again; zero when it could be read
	cause         string    // why it ends at endAt: the metric's reason
	expires       time.Time // when the client's token does; zero without access control
	guest         *guest    // who reads it, if that is a member; asked for with each heartbeat
	warnAt        time.Time // when the client is told of that; zero when it was, or need not be

	traffic traffic
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
	if st.mcp != nil && !st.mcp.checkAt.IsZero() && st.mcp.checkAt.Before(due) {
		due = st.mcp.checkAt
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
	s := st.service
	st.conn = web.Unwrap(conn) // writev needs it
	s.metrics.opened.Inc()
	s.metrics.connections.Inc()
	if st.mcp != nil {
		s.metrics.mcp.Inc()
	}
	w := s.nextWorker()
	s.admitted.Hold() // before anything can end the stream
	go func() {
		if err := st.open(from); err != nil {
			s.comesBack(st.asked.ctx, st.reader.Place, err)
			s.metrics.refused.WithLabelValues("unavailable").Inc()
			var out outbox
			out.only(st, st.farewell(), true)
			_ = flush(st.conn, append([][]byte{st.head}, out.buffers...), s.cfg.WriteTimeout) // or it has gone
			_ = st.conn.Close()
			st.reason = "failed"
			if st.mcp != nil && st.quiet.Load() {
				s.attached.miss(attachKey(st.reader.Place), st.mcp.claim)
			}
			w.finish(st)
			s.admitted.Release()
			return
		}
		w.post(st, newsBegun)
		go func() { // with a small stack
			defer s.admitted.Release()
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
	ctx, cancel := context.WithTimeout(st.service.base, openingTimeout)
	defer cancel()
	if st.raw, err = rawOf(st.conn); err != nil {
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
	st.connected(from)
	if st.mcp != nil {
		var out outbox
		out.only(st, st.opening(from.position), false)
		st.head = append(st.head, slices.Concat(out.buffers...)...)
		return nil
	}
	st.head = st.connect(ctx, from)
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
	return st.service.resumed(st.reader, st.asked, read)
}

func rawOf(conn net.Conn) (syscall.RawConn, error) {
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

// connect appends the first block to the head of the response. A client that is told
// of a gap next keeps the cursor that it came with until then: else a connection that
// ends before would swallow the gap.
func (st *stream) connect(ctx context.Context, from beginning) []byte {
	s, r := st.service, st.reader
	exists, oldest := r.About(ctx)
	retained := -1.0
	if age := s.log.Settings().MaxAge; age > 0 {
		retained = age.Seconds()
	}
	gap := len(r.Pending)+len(st.step.Gaps) > 0
	id := ""
	if !gap {
		id = r.ID(from.position)
	}
	return appendJSON(sse.AppendRetry(st.head, s.cfg.Retry), id, "connect", connectData{
		Session: r.Place.Session, Stream: orNull(r.Place.Stream), Exists: exists,
		Resumed: from.resumes && !gap, Oldest: oldest, RetainedFor: retained,
	})
}

// heartbeat moves the client's cursor, but never over a gap that it has not been
// told of yet.
func (st *stream) heartbeat() []byte {
	if st.mcp != nil || len(st.reader.Pending) > 0 {
		return []byte(":\n\n")
	}
	return sse.AppendEvent(nil, st.reader.ID(st.reader.Cursor), "cursor", []byte("{}"))
}

// closing is the last block of a stream or session that has ended with a step.
func (st *stream) closing(s cursor.Step) []byte {
	if st.mcp != nil {
		return st.unanswered(s)
	}
	r := st.reader
	return appendJSON(nil, r.ID(r.Cursor), "close", closeData{Status: "closed", Session: r.Place.Session, Stream: orNull(r.Place.Stream)})
}

// gaps returns the blocks of a step's gaps. All but the last carry the cursor that
// the client came with, so that none is lost if the connection ends between them.
func (st *stream) gaps(s cursor.Step) []byte {
	if st.mcp != nil {
		return st.lost(s)
	}
	var b []byte
	resumesAt := st.reader.ID(st.reader.ResumesAt(s))
	for i, g := range s.Gaps {
		id := resumesAt
		if i < len(s.Gaps)-1 {
			id = ""
		}
		b = appendJSON(b, id, "gap", gapData{Reason: g.Reason, Certain: g.Certain, Stream: orNull(g.Stream), Requested: g.Requested, ResumesAt: resumesAt})
	}
	return b
}

// rewritten reports whether the client gets other bytes than the window's frames.
func (st *stream) rewritten() bool { return st.envelope || st.reader.Place.Stream == "" }
