package delivery

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"rejoin/services/sse-edge/cursor"
	"rejoin/shared/event"
	"rejoin/shared/natsconn"
	"rejoin/shared/tracing"
)

// openingTimeout bounds how long a client waits for its first block. It is long
// since a storm of cursors below the windows has to be read from the log.
const openingTimeout = time.Minute

// Hand takes over the connection. It does not keep the goroutine that calls it, with
// the buffers of the request, while the log is read.
func (c *Connection) Hand(conn net.Conn, from Beginning) {
	s := c.of
	c.conn = conn
	s.Metrics.Opened.Inc()
	s.Metrics.Connections.Inc()
	w := s.workers[s.next.Add(1)%uint64(len(s.workers))]
	c.worker = w
	s.cfg.Admission.Hold() // before anything can end the connection
	ctx, cancel := context.WithTimeout(cursor.WithClient(s.cfg.Base, c.Request.Client), openingTimeout)
	c.raw, c.err = RawOf(conn)
	c.phase, c.cancel = opening, cancel
	w.post(func() { w.adopt(c) })
	go func() {
		defer cancel()
		if c.err == nil {
			c.err = c.open(ctx, from)
		}
		w.post(func() { w.back(c) })
	}()
	go func() { // with a small stack
		defer s.cfg.Admission.Release()
		waitUntilGone(c.conn)
		w.post(func() { w.end(c, "gone") })
	}()
}

// open reads the events after the client's cursor, and makes the first block: the
// cursor of a client without one is known once its first event is, and whether one
// with a cursor continues there once the next events are read.
func (c *Connection) open(ctx context.Context, from Beginning) (err error) {
	r := c.Reader
	if (from.Fresh || from.Resumes) && !from.Read {
		if c.Step, err = c.readFirst(ctx, from); err != nil {
			return err
		}
	}
	if from.Fresh {
		from.Position = r.ResumesAt(c.Step)
	}
	c.traffic.stood = from.Position
	message := "a subscriber connects"
	if from.Resumes {
		message = "a subscriber resumes"
	}
	c.log(message, from.Position, "")
	out := outbox{chunked: c.Chunked}
	out.block(c.Format.Opening(ctx, from))
	c.first = slices.Concat(out.buffers...)
	return nil
}

// readFirst reads the events after the client's cursor. While there is no memory for them, it tries again.
func (c *Connection) readFirst(ctx context.Context, from Beginning) (cursor.Step, error) {
	read := func() (cursor.Step, error) {
		if found, _, ok := c.source.Quick(nil); ok {
			return found, nil
		}
		for {
			found, err := c.source.Next(ctx)
			if !errors.Is(err, cursor.ErrNoMemory) || !natsconn.Pause(ctx, logRetry) {
				return found, err
			}
		}
	}
	if !from.Resumes {
		return read()
	}
	return c.of.resumed(c.Reader, c.Request, read)
}

// resumed reads the events that a resuming client has missed, in a span of its own.
func (s *Connections) resumed(r *cursor.Reader, by Request, read func() (cursor.Step, error)) (cursor.Step, error) {
	_, span := s.cfg.Traces.Start(by.Ctx, tracing.Resume.Name, trace.SpanKindInternal)
	defer span.End()
	found, err := read()
	if !span.IsRecording() {
		return found, err
	}
	if r.Place.Session != "" { // a connection of several sessions has no subject
		span.SetAttributes(tracing.Resume.OnEvent(r.Subject(event.Message, r.Place.Stream))...)
	}
	span.SetAttributes(tracing.KeyEvents.Int(len(found.Items)))
	if len(found.Items) > 0 {
		span.SetAttributes(tracing.KeySource.String(found.Items[0].Source()))
	}
	if len(found.Gaps) > 0 {
		span.SetAttributes(tracing.KeyGap.String(string(found.Gaps[0].Reason)))
	}
	if err != nil {
		tracing.Fail(span)
	}
	return found, err
}

// RawOf returns the operating system's view of a connection.
func RawOf(conn net.Conn) (syscall.RawConn, error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

// waitUntilGone returns when the client has closed the connection. A client has
// nothing to send on an event stream; its bytes are discarded.
func waitUntilGone(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Time{}) // fails on a closed connection, as Read does
	var b [64]byte
	for {
		if _, err := conn.Read(b[:]); err != nil {
			return
		}
	}
}
