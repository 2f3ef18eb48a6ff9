package edge

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/eventlog"
)

// fakeConn is a client's connection on which a test decides how writes end.
type fakeConn struct {
	net.Conn
	write  func(b []byte) (int, error)
	closed chan struct{}
	close  sync.Once
}

func newFakeConn(write func(b []byte) (int, error)) *fakeConn {
	return &fakeConn{write: write, closed: make(chan struct{})}
}

func (c *fakeConn) Write(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
		return c.write(b)
	}
}

func (c *fakeConn) Read([]byte) (int, error) {
	<-c.closed
	return 0, io.EOF
}

func (c *fakeConn) Close() error {
	c.close.Do(func() { close(c.closed) })
	return nil
}

func (c *fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (c *fakeConn) SetWriteDeadline(time.Time) error { return nil }

// streamTo returns a stream of s/a, one event a step, on a connection.
func streamTo(t *testing.T, s *Service, conn net.Conn) *stream {
	t.Helper()
	r, err := s.open(request{at: place{"s", "a"}}, limits{events: 1, bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return &stream{service: s, reader: r, conn: conn}
}

// A client that stood still in the middle of a heartbeat and then reads on must not
// get an event in the place of the heartbeat's end: it would take it for a cursor.
func TestNothingFollowsAHeartbeatThatWasCutShort(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	f.publish("a", 300)
	s, stop := f.startService(func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	defer stop()
	var written bytes.Buffer
	stalled := 0
	conn := newFakeConn(func(b []byte) (int, error) {
		if stalled == 0 && !strings.HasPrefix(string(b), "event: cursor") {
			time.Sleep(time.Millisecond) // so that heartbeats fall between events
			return written.Write(b)
		}
		if stalled++; stalled == 1 {
			_, _ = written.WriteString("event: cursor\n")
			return len("event: cursor\n"), os.ErrDeadlineExceeded
		}
		if stalled == 2 {
			return 0, os.ErrDeadlineExceeded
		}
		_, _ = written.Write(b)
		return 0, io.ErrClosedPipe
	})
	if err := streamTo(t, s, conn).run(t.Context(), step{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stream ended with %v", err)
	}
	if _, after, _ := strings.Cut(written.String(), "event: cursor\n"); after != "" {
		t.Errorf("behind the heartbeat's beginning came %.60q", after)
	}
}

// A client that takes a byte whenever the deadline is near makes progress, but an
// edge that stops does not wait for it.
func TestAnEdgeThatStopsDoesNotWaitForAClientThatReadsByteByByte(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	s, stop := f.startService(nil)
	defer stop()
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	conn := newFakeConn(func([]byte) (int, error) {
		begin()
		time.Sleep(time.Millisecond)
		return 1, os.ErrDeadlineExceeded
	})
	st := streamTo(t, s, conn)
	st.head = bytes.Repeat([]byte("x"), 1<<20) // minutes, at this speed
	done := make(chan struct{})
	go func() {
		defer close(done)
		st.serve(conn, step{})
	}()
	<-begun
	s.end()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("the stream goes on writing")
		_ = conn.Close()
		<-done
	}
}
