package delivery

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/shared/natsconn"
)

// openingTimeout bounds how long a client waits for its first block. It is long
// since a storm of cursors below the windows has to be read from the log.
const openingTimeout = time.Minute

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
	ctx, cancel := context.WithTimeout(cursor.WithClient(s.cfg.Base, st.Request.Client), openingTimeout)
	st.raw, st.err = RawOf(conn)
	st.phase, st.cancel = opening, cancel
	w.post(st, newsHanded)
	go func() {
		defer cancel()
		if st.err == nil {
			st.err = st.open(ctx, from)
		}
		w.post(st, newsBack)
	}()
	go func() { // with a small stack
		defer s.cfg.Admission.Release()
		waitUntilGone(st.conn)
		w.post(st, newsGone)
	}()
}

// open reads what follows the client's cursor, and makes the first block: where a
// client without a cursor stands is known once its first event is, and whether one
// with a cursor continues there once what follows was read.
func (st *Stream) open(ctx context.Context, from Beginning) (err error) {
	r := st.Reader
	if (from.Fresh || from.Resumes) && !from.Read {
		if st.Step, err = st.readFirst(ctx, from); err != nil {
			return err
		}
	}
	if from.Fresh {
		from.Position = r.ResumesAt(st.Step)
	}
	st.traffic.stood = from.Position
	st.logBegin(from)
	out := outbox{chunked: st.Chunked}
	out.block(st.Format.Opening(ctx, from))
	st.first = slices.Concat(out.buffers...)
	return nil
}

// readFirst reads what follows the client's cursor. While there is no memory for that, it tries again.
func (st *Stream) readFirst(ctx context.Context, from Beginning) (cursor.Step, error) {
	read := func() (cursor.Step, error) {
		if found, _, ok := st.source.Quick(nil); ok {
			return found, nil
		}
		for {
			found, err := st.source.Next(ctx)
			if !errors.Is(err, cursor.ErrNoMemory) || !natsconn.Pause(ctx, logRetry) {
				return found, err
			}
		}
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
