package edge

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"rejoin/services/web"
	"rejoin/shared/sse"
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
	ok, reason := s.enter()
	if !ok {
		return s.later(c, reason)
	}
	handedOver := false
	defer func() {
		if !handedOver {
			s.leave()
		}
	}()
	r, err := s.open(req, limits{events: stepEvents, bytes: stepBytes})
	if problem := web.AsProblem(err); err != nil && problem.Code == web.CodeUnavailable {
		s.logger.Warn("a subscriber is told to come back", "error", err)
		return s.later(c, "unavailable")
	}
	if err != nil {
		return err
	}
	defer func() {
		if !handedOver {
			r.close()
		}
	}()
	if r.finished() {
		return c.SendStatus(fiber.StatusNoContent)
	}
	first, position := step{}, r.cursor
	if r.fresh || req.start.after != "" {
		// Where a client without a cursor stands is known once its first event is, and
		// whether one with a cursor goes on there once what follows was read.
		resumed := !r.fresh
		if first, err = s.poll(r, 0); err != nil {
			s.logger.Warn("a subscriber is told to come back", "error", err)
			return s.later(c, "unavailable")
		}
		if len(first.gaps) > 0 && req.onGapError {
			s.count(first)
			return goneProblem(first.gaps[0])
		}
		if !resumed {
			position = r.resumesAt(first)
		}
	}
	gap := len(r.pending)+len(first.gaps) > 0
	st := &stream{service: s, reader: r, req: req, head: responseHead(c), position: position, resumed: req.start.after != "" && !gap, gap: gap}
	handedOver = true
	c.Context().HijackSetNoResponse(true)
	c.Context().Hijack(func(conn net.Conn) {
		defer s.leave()
		defer r.close()
		st.serve(conn, first)
	})
	return nil
}

// later tells an EventSource to come back.
func (s *Service) later(c *fiber.Ctx, reason string) error {
	s.metrics.refused.WithLabelValues(reason).Inc()
	c.Set(fiber.HeaderContentType, "text/event-stream")
	c.Set("X-Accel-Buffering", "no")
	c.Context().SetConnectionClose()
	return c.Send(append(sse.AppendRetry(nil, jitter(s.cfg.Retry)), '\n'))
}

// jitter returns d give or take a third, so that clients do not come back together.
func jitter(d time.Duration) time.Duration {
	return d*2/3 + time.Duration(rand.Int64N(int64(d)*2/3+1)) //nolint:gosec // no secret
}

// responseHead returns the head of a response whose body ends with the connection,
// with the headers that were set so far.
func responseHead(c *fiber.Ctx) []byte {
	var h fasthttp.ResponseHeader
	c.Response().Header.CopyTo(&h)
	h.SetStatusCode(fiber.StatusOK)
	h.SetContentType("text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	h.SetConnectionClose()
	h.SetContentLength(-2) // neither a length nor chunks
	h.Del(fiber.HeaderTransferEncoding)
	return h.AppendBytes(nil)
}

// stream is one event stream: the loop that moves its reader's cursor.
type stream struct {
	service *Service
	reader  *reader
	req     request
	head    []byte
	// position is where the connection begins; resumed says that it is where the
	// client's cursor was.
	position uint64
	resumed  bool
	// gap says that the client is told of a gap next. It keeps the cursor that it
	// came with until then: else a connection that ends before would swallow the gap.
	gap     bool
	conn    net.Conn
	buffers net.Buffers
	// lastSegment and lastEnd are where the frame that was added last lies in the window.
	lastSegment, lastEnd uint64
}

// errEnd ends a stream in order; its text is the metric's reason.
type errEnd string

func (e errEnd) Error() string { return string(e) }

func (st *stream) serve(conn net.Conn, first step) {
	m := st.service.metrics
	m.opened.Inc()
	m.connections.Inc()
	defer m.connections.Dec()
	st.conn = tcp(conn)
	// A write that makes a little progress again and again has no end of its own: it
	// ends with the edge, and a while after the connection should have.
	cfg := st.service.cfg
	ctx, cancel := context.WithTimeout(st.service.base, cfg.MaxAge*11/10+cfg.WriteTimeout)
	defer context.AfterFunc(ctx, func() { _ = st.conn.Close() })()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		waitUntilGone(st.conn)
	}()
	err := st.run(ctx, first)
	cancel()
	_ = st.conn.Close()
	<-watched
	m.closed.WithLabelValues(reasonToEnd(err)).Inc()
}

func reasonToEnd(err error) string {
	var end errEnd
	switch {
	case errors.As(err, &end):
		return string(end)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "slow"
	default:
		return "gone"
	}
}

// tcp returns the connection below Fiber's, which net.Buffers can write to at once.
func tcp(conn net.Conn) net.Conn {
	if u, ok := conn.(interface{ UnsafeConn() net.Conn }); ok {
		return u.UnsafeConn()
	}
	return conn
}

// waitUntilGone returns when the client has closed the connection. A client has
// nothing to say on an event stream; what it says is thrown away.
func waitUntilGone(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Time{})
	var b [64]byte
	for {
		if _, err := conn.Read(b[:]); err != nil {
			return
		}
	}
}

// run is the cursor loop.
func (st *stream) run(ctx context.Context, first step) error {
	cfg := st.service.cfg
	if err := st.write(st.connect(ctx)); err != nil {
		return err
	}
	if !first.empty() {
		if err := st.tell(first); err != nil {
			return err
		}
	}
	heartbeat := time.NewTicker(cfg.Heartbeat)
	defer heartbeat.Stop()
	age := time.NewTimer(cfg.MaxAge*9/10 + time.Duration(rand.Int64N(int64(cfg.MaxAge)/5+1))) //nolint:gosec // no secret
	defer age.Stop()
	drain := st.service.drain
	var drained <-chan time.Time
	for {
		s, err := st.reader.next(ctx)
		var changed <-chan struct{}
		var again <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			st.service.logger.Warn("an event stream waits for the log", "error", err)
			again = time.After(logRetry)
		case !s.empty():
			if err := st.tell(s); err != nil {
				return err
			}
		default:
			changed = st.reader.wait(s)
		}
		if changed == nil && again == nil {
			// There may be more: go on at once, but keep to the clock.
			again = immediately
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-heartbeat.C:
			if err := st.write(st.heartbeat()); err != nil {
				return err
			}
		case <-age.C:
			return st.end("age")
		case <-drain:
			drain = nil
			drained = time.After(time.Duration(rand.Int64N(int64(cfg.Drain) + 1))) //nolint:gosec // no secret
		case <-drained:
			return st.end("drain")
		case <-changed:
		case <-again:
		}
	}
}

// immediately is a channel that never blocks.
var immediately = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// connect is the first block of a connection, with the head of the response.
func (st *stream) connect(ctx context.Context) []byte {
	s, r := st.service, st.reader
	exists, oldest := r.about(ctx)
	retained := -1.0
	if age := s.log.Settings().MaxAge; age > 0 {
		retained = age.Seconds()
	}
	b := sse.AppendRetry(st.head, s.cfg.Retry)
	st.head = nil
	id := ""
	if !st.gap {
		id = r.id(st.position)
	}
	return appendJSON(b, id, "connect", connectData{
		Session: r.place.session, Stream: orNull(r.place.stream), Exists: exists,
		Resumed: st.resumed, Oldest: oldest, RetainedFor: retained,
	})
}

// heartbeat moves the client's cursor, but never over a gap that it has not been
// told of yet.
func (st *stream) heartbeat() []byte {
	if len(st.reader.pending) > 0 {
		return []byte(":\n\n")
	}
	return sse.AppendEvent(nil, st.reader.id(st.reader.cursor), "cursor", []byte("{}"))
}

// end tells the client when to come back.
func (st *stream) end(reason string) error {
	b := sse.AppendRetry(nil, jitter(st.service.cfg.Retry))
	if err := st.write(append(b, '\n')); err != nil {
		return err
	}
	return errEnd(reason)
}

// tell writes a step.
func (st *stream) tell(s step) error {
	r := st.reader
	st.buffers = st.buffers[:0]
	if len(s.gaps) > 0 {
		st.buffers = append(st.buffers, st.gaps(s))
	}
	for i := range s.items {
		st.frame(&s.items[i], i > 0 && !st.rewritten())
	}
	if s.ended {
		status := closeData{Status: "closed", Session: r.place.session, Stream: orNull(r.place.stream)}
		st.buffers = append(st.buffers, appendJSON(nil, r.id(r.cursor), "close", status))
	}
	st.service.count(s)
	if err := st.flush(); err != nil {
		return err
	}
	if s.ended {
		return errEnd("ended")
	}
	return nil
}

// gaps returns the blocks of a step's gaps. All but the last carry the cursor that
// the client came with, so that none is lost if the connection ends between them.
func (st *stream) gaps(s step) []byte {
	var b []byte
	resumesAt := st.reader.id(st.reader.resumesAt(s))
	for i, g := range s.gaps {
		id := resumesAt
		if i < len(s.gaps)-1 {
			id = ""
		}
		b = appendJSON(b, id, "gap", gapData{Reason: g.reason, Certain: g.certain, Stream: orNull(g.stream), Requested: g.requested, ResumesAt: resumesAt})
	}
	return b
}

// rewritten reports whether the window's frames cannot be sent as they are.
func (st *stream) rewritten() bool { return st.req.envelope || st.reader.place.stream == "" }

// frame adds an item's frame to what is to be written: the window's own bytes, as
// one slice with the one before where they are neighbours.
func (st *stream) frame(it *item, maybeNext bool) {
	if !st.rewritten() {
		if n := len(st.buffers); maybeNext && n > 0 && it.segment != ^uint64(0) && it.segment == st.lastSegment && it.offset == st.lastEnd {
			st.buffers[n-1] = st.buffers[n-1][:len(st.buffers[n-1])+len(it.frame)]
		} else {
			st.buffers = append(st.buffers, it.frame)
		}
		st.lastSegment, st.lastEnd = it.segment, it.offset+uint64(len(it.frame))
		return
	}
	id := st.reader.id(it.sequence)
	if st.req.envelope {
		st.buffers = append(st.buffers, appendJSON(nil, id, "", it.object(st.reader.tags)))
		return
	}
	typ, data := frameParts(it.frame)
	if typ == "message" {
		typ = ""
	}
	st.buffers = append(st.buffers, sse.AppendEvent(nil, id, typ, data))
}

func (st *stream) write(b []byte) error {
	st.buffers = append(st.buffers[:0], b)
	return st.flush()
}

// flush writes the buffers with as few system calls as there can be. The deadline
// is for progress: a client that reads slowly is waited for, one that does not
// read is let go, to come back with its cursor.
func (st *stream) flush() error {
	all := st.buffers
	for len(st.buffers) > 0 {
		if err := st.conn.SetWriteDeadline(time.Now().Add(st.service.cfg.WriteTimeout)); err != nil {
			return err
		}
		n, err := st.buffers.WriteTo(st.conn)
		st.service.metrics.sentBytes.Add(float64(n))
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return err
		}
	}
	st.buffers = all[:0]
	return nil
}
