package web

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"rejoin/shared/daemon"
	"rejoin/shared/metric/metrictest"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

// scriptedListener returns the connections and errors of its script, and then waits to be closed.
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
	must.NoError(t, l.Close())
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

func TestListen_ServesEveryQueue(t *testing.T) {
	t.Parallel()
	ln := must.Value(Listen(daemon.NewEnv(nil), "127.0.0.1:0", "--addr", Bounds{}))(t)
	var dialer net.Dialer
	for range 64 { // not one of four queues is left out but once in 30 million
		client := must.Value(dialer.DialContext(t.Context(), "tcp", ln.Addr().String()))(t)
		served, err := ln.Accept()
		if err != nil || served.RemoteAddr().String() != client.LocalAddr().String() {
			t.Fatalf("%v, %v", served, err)
		}
		_ = client.Close()
		_ = served.Close()
	}
	// The port can be opened again as soon as it is closed.
	must.NoError(t, errors.Join(ln.Close(), ln.Close()))
	again := must.Value(Listen(daemon.NewEnv(nil), ln.Addr().String(), "--addr", Bounds{}))(t)
	must.NoError(t, again.Close())
}

// A program that has more memory for clients takes more connections.
func TestBound_ConnectionsFollowTheMemory(t *testing.T) {
	for memory, want := range map[int64]int64{64 << 20: 10_000, 2 << 30: 97_612, -1: 0} {
		env := daemon.NewEnv(nil)
		env.Memory = quota.NewPool(memory)
		if got := newBound(Bounds{Address: 3}, env).open.Capacity(); got != want {
			t.Errorf("with %d bytes %d connections may be open, want %d", memory, got, want)
		}
	}
	if got := newBound(Bounds{Connections: 8}, daemon.NewEnv(nil)).open.Capacity(); got != 8 {
		t.Errorf("%d connections may be open, want 8", got)
	}
}

// A client uses files and memory before its token is checked.
func TestListen_ConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	proxy := must.Value(NewClients(ClientsConfig{TrustedProxies: []string{"127.0.0.1"}}))(t)
	for name, c := range map[string]struct {
		bounds Bounds
		files  int64
		open   int
	}{
		"of a client's share":    {Bounds{Connections: 8}, 0, 6},
		"of all, with a proxy":   {Bounds{Connections: 8, Clients: proxy}, 0, 8},
		"of an address":          {Bounds{Connections: 8, Address: 3}, 0, 3},
		"of the process's files": {Bounds{}, 4, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log waittest.Buffer
			env := daemon.NewEnv(slog.New(slog.NewTextHandler(&log, nil)))
			env.Files = quota.NewPool(c.files)
			app := NewApp(Config{Service: "test"})
			Mount(app, Route{Method: "GET", Path: "/", Handler: echo("ok")})
			ln := must.Value(Listen(env, "127.0.0.1:0", "--addr", c.bounds))(t)
			addr, stop := startOn(t, app, ln, waittest.Timeout)
			get := func() (*client, error) {
				conn := dial(t, addr)
				_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if err == nil {
					_, err = conn.r.ReadByte()
				}
				return conn, err
			}
			var idle []*client
			for range c.open {
				conn := must.Value(get())(t)
				idle = append(idle, conn)
			}
			for range 3 {
				if _, err := get(); err == nil {
					t.Error("one more is served")
				}
			}
			if n := strings.Count(log.String(), "connections are closed at once"); n != 1 {
				t.Errorf("%d lines: %s", n, log.String())
			}
			reason := "connections"
			if c.files > 0 {
				reason = "files"
			}
			if n := metrictest.Value(t, env.Metrics, "rejoin_listener_refused_total", reason); n != 3 {
				t.Errorf("%v are counted for want of %s", n, reason)
			}
			_ = idle[0].Close()
			waittest.Until(t, "there is room for another", func() bool {
				_, err := get()
				return err == nil
			})
			must.NoError(t, stop())
			if l, ok := ln.(*listener); !ok || l.bound.open.Used() != 0 || env.Files.Used() != 0 {
				t.Errorf("after the stop: %d connections, %d files", l.bound.open.Used(), env.Files.Used())
			}
		})
	}
}
