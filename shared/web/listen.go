package web

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/daemon"
	"rejoin/shared/logrepeat"
	"rejoin/shared/quota"
)

// Listen opens a TCP listener on addr, host:port, or by env.Listen; port 0 takes any free port. An error
// is one sentence for the user that names flag, the command-line flag that set addr,
// such as "--edge-addr".
//
// The kernel's queue of connections that wait to be accepted is at most
// net.core.somaxconn long, 4,096 by default, and a client that does not fit into it
// tries again after a second: in a storm of reconnects all clients would wait for
// that. So several sockets listen where the system can share an address between
// them (SO_REUSEPORT on Linux), each with a queue of its own, and connections are
// accepted before the server asks for them. docs/adr/0009 has the figures.
//
// At most as many connections are open as bounds and env.Files allow. One more is closed at once: its
// token is not checked yet, and in the kernel's queue it would keep out later ones.
func Listen(env daemon.Env, addr, flag string, bounds Bounds) (net.Listener, error) {
	if env.Listen != nil {
		return env.Listen(addr, flag)
	}
	host, port, err := net.SplitHostPort(addr)
	if err == nil && port != "0" && canShare {
		// Sockets that share their address do not notice that another program of the
		// same user shares it too: only a socket that does not share it fails then.
		alone, err := daemon.Listen(addr, flag)
		if err != nil {
			return nil, err
		}
		if err := alone.Close(); err != nil {
			return nil, err
		}
	}
	lc := net.ListenConfig{Control: share}
	first, err := daemon.ListenWith(lc, addr, flag)
	if err != nil {
		return nil, err
	}
	l := one(first)
	l.bound = newBound(bounds, env)
	_, port, err = net.SplitHostPort(first.Addr().String())
	for err == nil && canShare && len(l.sockets) < queues {
		var next net.Listener
		if next, err = daemon.ListenWith(lc, net.JoinHostPort(host, port), flag); err == nil {
			l.sockets = append(l.sockets, next)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

const (
	// queues is how many sockets listen on an address.
	queues = 4
	// accepted is how many connections wait for a goroutine of the server.
	accepted = 16_384
	// acceptPause is how long a process that has no room for a connection waits before it accepts again.
	acceptPause = 20 * time.Millisecond
)

// listener accepts connections as they arrive, before the server asks for them, once
// it has asked for the first.
type listener struct {
	sockets []net.Listener
	conns   chan net.Conn
	begin   sync.Once
	end     sync.Once
	fault   sync.Once
	bound   *bound // nil: any number of connections
	err     error  // of the first Accept that failed; set before conns is closed
}

func one(ln net.Listener) *listener {
	return &listener{sockets: []net.Listener{ln}, conns: make(chan net.Conn, accepted)}
}

// acceptAll accepts on all sockets until each has failed.
func (l *listener) acceptAll() {
	var all sync.WaitGroup
	for _, ln := range l.sockets {
		all.Go(func() { l.fail(l.acceptFrom(ln)) })
	}
	go func() {
		all.Wait()
		close(l.conns)
	}()
}

func (l *listener) fail(err error) {
	l.fault.Do(func() {
		l.err = err
		_ = l.Close() // a queue that is not emptied is worse than none
	})
}

func (l *listener) acceptFrom(ln net.Listener) error {
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			if conn = l.bound.admit(conn); conn != nil {
				l.conns <- conn
			}
		case scarce(err):
			time.Sleep(acceptPause)
		default:
			return err
		}
	}
}

const (
	// minConnections is how many connections a listener may have open at a time even with little memory.
	minConnections = 10_000
	// idleBytes is the memory of an idle connection.
	idleBytes = 22_000
)

// roomFor is how many connections fit into the memory that clients may make the program hold; 0: any number.
func roomFor(memory *quota.Pool) int64 {
	if memory == nil {
		return 0
	}
	return max(minConnections, memory.Capacity()/idleBytes)
}

// Bounds are how many connections a listener has open at a time. One client may have three quarters of
// them, and a quarter while others have the rest; see [quota.Pool].
type Bounds struct {
	// Connections bounds all of them. Default: as many as env.Memory has room for, but at least 10,000.
	Connections int
	// Address bounds those of one client address (IPv6: one /64 network). Default: its share.
	Address int
	// Clients knows which peers are proxies, whose connections are in no client's share.
	Clients *Clients
}

// bound counts the connections of a listener. A nil one bounds nothing.
type bound struct {
	clients *Clients
	open    *quota.Pool // connections of this listener
	files   *quota.Pool // of the process
	refused *Refused
}

// Reasons of [Refused]: which bound was reached.
const (
	RefusedConnections = "connections"
	RefusedFiles       = "files"
)

// Refused counts the connections and requests that are refused before a request could be answered, and logs
// them now and then. It is safe for concurrent use.
type Refused struct {
	log   *logrepeat.Log
	total *prometheus.CounterVec
}

// NewRefused registers the metric rejoin_listener_refused_total, which all listeners of a program share.
func NewRefused(env daemon.Env) *Refused {
	r := &Refused{logrepeat.New(env.Log), prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rejoin_listener_refused_total",
		Help: "Connections that were closed at once, and requests over TLS that were cut off, by which bound was reached, in all or for one address: connections, files.",
	}, []string{"reason"})}
	if err := env.Metrics.Register(r.total); err != nil {
		before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err)
		if !ok {
			panic(err)
		}
		r.total = before.ExistingCollector.(*prometheus.CounterVec) //nolint:errcheck,forcetypeassert // this function registered it
	}
	for _, reason := range []string{RefusedConnections, RefusedFiles} {
		r.total.WithLabelValues(reason)
	}
	return r
}

// Note counts one refusal for a reason.
func (r *Refused) Note(reason, message string, attrs ...slog.Attr) {
	r.total.WithLabelValues(reason).Inc()
	r.log.Note(context.Background(), reason, message, attrs...)
}

func newBound(b Bounds, env daemon.Env) *bound {
	open := quota.NewPool(cmp.Or(int64(b.Connections), roomFor(env.Memory)))
	open.Each(int64(b.Address))
	return &bound{b.Clients, open, env.Files, NewRefused(env)}
}

// admit counts a connection until it is closed, or closes it and returns nil.
func (b *bound) admit(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if b == nil || !ok {
		return conn
	}
	client := b.clients.Peer(conn.RemoteAddr())
	if !b.open.Take(client, 1) {
		b.refuse(conn, RefusedConnections, "connections are closed at once: as many as there may be are open, in all or of their address (--max-connections at an edge, else --memory-budget)")
		return nil
	}
	if !b.files.Take(client, 1) {
		b.open.Give(client, 1)
		b.refuse(conn, RefusedFiles, "connections are closed at once: the limit of open files (ulimit -n) has no room for more, or for more of their address")
		return nil
	}
	return &counted{TCPConn: tcp, bound: b, client: client}
}

func (b *bound) refuse(conn net.Conn, reason, message string) {
	b.refused.Note(reason, message, slog.String("addr", conn.LocalAddr().String()), slog.String("client", conn.RemoteAddr().String()), slog.Int64("open", b.open.Used()))
	_ = conn.Close() // nothing was sent on it
}

// counted is a connection whose shares are given back when it is closed.
type counted struct {
	*net.TCPConn
	Ending
	bound  *bound
	client string
	closed atomic.Bool
}

func (c *counted) Read(p []byte) (int, error) { return c.Note(c.TCPConn.Read(p)) }

// Ending is part of a connection and notes that it was read to its end: [Body] has to know that. The zero value is
// ready. It is safe for concurrent use.
type Ending struct{ noted atomic.Bool }

// Note returns the result of a read unchanged.
func (e *Ending) Note(n int, err error) (int, error) {
	if errors.Is(err, io.EOF) {
		e.noted.Store(true)
	}
	return n, err
}

// Ended reports whether the end was noted.
func (e *Ending) Ended() bool { return e.noted.Load() }

// Close may be called again.
func (c *counted) Close() error {
	err := c.TCPConn.Close()
	if !c.closed.Swap(true) {
		c.bound.open.Give(c.client, 1)
		c.bound.files.Give(c.client, 1)
	}
	return err
}

// scarce reports whether a connection could not be accepted for want of a resource that
// is free again when others end. fasthttp would stop serving (docs/upstream/0022).
func scarce(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

func (l *listener) Addr() net.Addr { return l.sockets[0].Addr() }

// Accept returns the next connection. After Close it returns those that were accepted
// before, and then an error.
func (l *listener) Accept() (net.Conn, error) {
	l.begin.Do(l.acceptAll)
	conn, ok := <-l.conns
	if !ok {
		return nil, l.err
	}
	return conn, nil
}

// Close may be called again.
func (l *listener) Close() (err error) {
	l.end.Do(func() {
		for _, ln := range l.sockets {
			err = errors.Join(err, ln.Close())
		}
	})
	return err
}

// drop closes the connections that were accepted and not taken. Close must have been called.
func (l *listener) drop() {
	l.begin.Do(l.acceptAll) // which ends at once
	for conn := range l.conns {
		_ = conn.Close()
	}
}
