package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// load is a crowd of SSE clients that costs little: a few goroutines with an epoll
// each, no goroutine and no allocation for an event. On every connection it checks
// that event n follows event n-1, and that sequences only grow.
type load struct {
	engines []*engine
	// delivered counts messages over all connections.
	delivered atomic.Int64
	// connected counts connections that have had their first block.
	connected atomic.Int64
	failed    chan error
	stop      chan struct{}
	done      sync.WaitGroup
}

// engine serves a part of the connections with one goroutine.
type engine struct {
	load  *load
	epoll int
	conns []*loadConn
	buf   []byte
	hist  histogram
}

// loadConn is one connection.
type loadConn struct {
	fd       int
	index    int
	rest     []byte // an unfinished block
	inBody   bool
	stalled  bool // does not read
	sequence uint64
	next     int // the number of the next message
	id       []byte
}

const loadEngines = 2

// target says what the connections ask for.
type target struct {
	addr string // host:port
	// path returns the request target of connection i, and the number of the first
	// message that it must get.
	path func(i int) (path string, first int)
}

// newLoad opens n connections, a bounded number of handshakes at a time, and waits
// until each has had its first block.
func newLoad(ctx context.Context, n int, t target) (*load, error) {
	l := &load{failed: make(chan error, 1), stop: make(chan struct{})}
	for range loadEngines {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return nil, err
		}
		l.engines = append(l.engines, &engine{load: l, epoll: fd, buf: make([]byte, 1<<20)})
	}
	for _, e := range l.engines {
		l.done.Go(e.run)
	}
	for i := range n {
		path, first := t.path(i)
		if err := l.engines[i%loadEngines].open(i, t.addr, path, first); err != nil {
			l.close()
			return nil, fmt.Errorf("connection %d: %w", i, err)
		}
		// Bounded by what the servers' accept queues hold.
		if err := l.wait(ctx, func() bool { return int64(i+1)-l.connected.Load() < 400 }); err != nil {
			l.close()
			return nil, err
		}
	}
	if err := l.wait(ctx, func() bool { return l.connected.Load() >= int64(n) }); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// wait polls until ok, an error of a connection, or the end of ctx.
func (l *load) wait(ctx context.Context, ok func() bool) error {
	for !ok() {
		select {
		case err := <-l.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%w: %d connected, %d delivered", ctx.Err(), l.connected.Load(), l.delivered.Load())
		default:
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

func (l *load) fail(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// close ends all connections and returns the latencies of all messages.
func (l *load) close() *histogram {
	close(l.stop)
	l.done.Wait()
	var all histogram
	for _, e := range l.engines {
		for _, c := range e.conns {
			_ = unix.Close(c.fd)
		}
		_ = unix.Close(e.epoll)
		all.merge(&e.hist)
	}
	return &all
}

// resetLatencies forgets what was measured so far. Call it while nothing is sent.
func (l *load) resetLatencies() {
	for _, e := range l.engines {
		e.hist = histogram{}
	}
}

// open connects, sends the request, and hands the socket to the epoll.
func (e *engine) open(i int, addr, path string, first int) error {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	sa := &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	if err := unix.Connect(fd, sa); err != nil {
		_ = unix.Close(fd)
		return err
	}
	request := "GET " + path + " HTTP/1.1\r\nHost: " + net.JoinHostPort("127.0.0.1", fmt.Sprint(ap.Port())) + "\r\nAccept: text/event-stream\r\n\r\n"
	if _, err := unix.Write(fd, []byte(request)); err != nil {
		_ = unix.Close(fd)
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	c := &loadConn{fd: fd, index: i, next: first}
	e.conns = append(e.conns, c)
	return unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(i / loadEngines)}) //nolint:gosec // a few thousand
}

func (e *engine) run() {
	events := make([]unix.EpollEvent, 512)
	for {
		select {
		case <-e.load.stop:
			return
		default:
		}
		n, err := unix.EpollWait(e.epoll, events, 20)
		if err != nil && !errors.Is(err, unix.EINTR) {
			e.load.fail(err)
			return
		}
		for i := range max(n, 0) {
			c := e.conns[events[i].Fd]
			if c.stalled {
				continue
			}
			if err := e.read(c); err != nil {
				e.load.fail(fmt.Errorf("connection %d after message %d: %w", c.index, c.next-1, err))
				return
			}
		}
	}
}

// read takes what there is and checks it.
func (e *engine) read(c *loadConn) error {
	kept := copy(e.buf, c.rest)
	n, err := unix.Read(c.fd, e.buf[kept:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	case n == 0:
		return errors.New("the server closed the connection")
	}
	data := e.buf[:kept+n]
	if !c.inBody {
		i := bytes.Index(data, []byte("\r\n\r\n"))
		if i < 0 {
			c.rest = append(c.rest[:0], data...)
			return nil
		}
		if !bytes.HasPrefix(data, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("the answer is %.80q", data)
		}
		data, c.inBody = data[i+4:], true
	}
	now := time.Now().UnixNano()
	delivered := int64(0)
	for {
		i := bytes.Index(data, []byte("\n\n"))
		if i < 0 {
			break
		}
		isMessage, err := e.block(c, data[:i+1], now)
		if err != nil {
			return err
		}
		if isMessage {
			delivered++
		}
		data = data[i+2:]
	}
	c.rest = append(c.rest[:0], data...)
	if delivered > 0 {
		e.load.delivered.Add(delivered)
	}
	return nil
}

// block checks one block. A message is `id: …_<sequence>`, then data with the
// members "n" and "t".
func (e *engine) block(c *loadConn, block []byte, now int64) (isMessage bool, err error) {
	if !bytes.HasPrefix(block, []byte("id: ")) {
		switch {
		case bytes.Contains(block, []byte("event: connect\n")), bytes.HasPrefix(block, []byte(": open")):
			e.load.connected.Add(1)
		case bytes.Contains(block, []byte("event: gap\n")):
			return false, fmt.Errorf("gap: %s", block)
		}
		return false, nil
	}
	line := block[4:bytes.IndexByte(block, '\n')]
	sequence, err := decimal(line[bytes.LastIndexByte(line, '_')+1:])
	if err != nil {
		return false, err
	}
	if uint64(sequence) <= c.sequence { //nolint:gosec // positive
		return false, fmt.Errorf("sequence %d came after %d", sequence, c.sequence)
	}
	c.sequence = uint64(sequence) //nolint:gosec // positive
	c.id = append(c.id[:0], line...)
	n, err := member(block, `"n":`)
	if err != nil {
		return false, err
	}
	if n != int64(c.next) {
		return false, fmt.Errorf("got message %d, want %d", n, c.next)
	}
	c.next++
	t, err := member(block, `"t":`)
	if err != nil {
		return false, err
	}
	e.hist.add(now - t)
	return true, nil
}

// member returns the number behind a key, which stands early in the block.
func member(block []byte, key string) (int64, error) {
	head := block[:min(len(block), 220)]
	i := bytes.Index(head, []byte(key))
	if i < 0 {
		return 0, fmt.Errorf("no %s in %.100q", key, block)
	}
	rest := head[i+len(key):]
	end := bytes.IndexByte(rest, ',')
	if end < 0 {
		return 0, fmt.Errorf("no number behind %s in %.100q", key, block)
	}
	return decimal(rest[:end])
}

func decimal(b []byte) (int64, error) {
	var v int64
	if len(b) == 0 {
		return 0, errors.New("no number")
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("not a number: %q", b)
		}
		v = v*10 + int64(c-'0')
	}
	return v, nil
}

// stamped returns message n as it is sent now, padded to size bytes.
func stamped(n, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), `{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d,"t":%d,"pad":"`, n, time.Now().UnixNano())
	for len(b) < size-3 {
		b = append(b, 'x')
	}
	return append(b, `"}}`...)
}
