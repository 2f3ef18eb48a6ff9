package web

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"

	"rejoin/shared/daemon"
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

func TestListen_AcceptsInOrder(t *testing.T) {
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
	l := one(under)
	for i := range 12 {
		if conn, err := l.Accept(); err != nil || conn != near[i] {
			t.Fatalf("connection %d is %v, %v", i, conn, err)
		}
	}
	for len(under.script) > 0 || len(l.conns) < 8 { // the rest is accepted without a caller
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

func TestListen_AddressIsExclusive(t *testing.T) {
	t.Parallel()
	first, err := Listen(daemon.Env{}, "127.0.0.1:0", "--addr")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if second, err := Listen(daemon.Env{}, first.Addr().String(), "--addr"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("the port was opened twice: %v, %v", second, err)
	}
}

func TestListen_ServesEveryQueue(t *testing.T) {
	t.Parallel()
	ln, err := Listen(daemon.Env{}, "127.0.0.1:0", "--addr")
	if err != nil {
		t.Fatal(err)
	}
	var dialer net.Dialer
	for range 64 { // not one of four queues is left out but once in 30 million
		client, err := dialer.DialContext(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		served, err := ln.Accept()
		if err != nil || served.RemoteAddr().String() != client.LocalAddr().String() {
			t.Fatalf("%v, %v", served, err)
		}
		_ = client.Close()
		_ = served.Close()
	}
	// The port can be opened again as soon as it is closed.
	if err := errors.Join(ln.Close(), ln.Close()); err != nil {
		t.Error(err)
	}
	again, err := Listen(daemon.Env{}, ln.Addr().String(), "--addr")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
