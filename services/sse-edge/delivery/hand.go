package delivery

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"rejoin/services/sse-edge/cursor"
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
	go func() {
		if err := st.open(from); err != nil {
			s.cfg.SentAway(st.Request, st.Reader.Place, err)
			s.CountRefused("unavailable")
			var out outbox
			out.only(st, st.Format.Farewell(), true)
			_ = flush(st.conn, append([][]byte{st.Head}, out.buffers...), s.cfg.WriteTimeout, nil) // or it has gone
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
	ctx, cancel := context.WithTimeout(cursor.WithClient(st.streams.cfg.Base, st.Request.Client), openingTimeout)
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
		if found, _, ok := st.source.Quick(nil); ok {
			return found, nil
		}
		return st.source.Next(ctx)
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
