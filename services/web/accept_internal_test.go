package web

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
)

// scriptedListener returns what it was given, and then waits to be closed.
type scriptedListener struct {
	net.Listener
	script chan any // a net.Conn or an error
	closed chan struct{}
	once   sync.Once
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	select {
	case next := <-l.script:
		if err, ok := next.(error); ok {
			return nil, err
		}
		return next.(net.Conn), nil //nolint:errcheck,forcetypeassert // the test's own
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *scriptedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func TestConnectionsAreAcceptedInOrderAndAlsoWithoutRoom(t *testing.T) {
	under := &scriptedListener{script: make(chan any, 100), closed: make(chan struct{})}
	var far, near []net.Conn
	for i := range 20 {
		a, b := net.Pipe()
		far, near = append(far, a), append(near, b)
		under.script <- b
		if i%7 == 3 {
			under.script <- &net.OpError{Op: "accept", Err: fmt.Errorf("accept4: %w", syscall.EMFILE)}
		}
	}
	l := acceptEagerly(under)
	for i := range 12 {
		if conn, err := l.Accept(); err != nil || conn != near[i] {
			t.Fatalf("connection %d is %v, %v", i, conn, err)
		}
	}
	for len(under.script) > 0 || len(l.conns) < 8 { // the rest is accepted though nobody asks
		continue
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if conn, err := l.Accept(); err != nil || conn != near[12] {
		t.Errorf("after the close: %v, %v", conn, err)
	}
	l.drop()
	for i := 13; i < 20; i++ {
		if _, err := far[i].Write([]byte("x")); err == nil {
			t.Errorf("connection %d is open", i)
		}
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("at the end: %v", err)
	}
	for i := range 13 {
		_ = far[i].Close()
		_ = near[i].Close()
	}
}
