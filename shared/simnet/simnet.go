// Package simnet is a network in memory, for tests in virtual time: a goroutine that waits for
// it is durably blocked in the sense of testing/synctest, which one that waits for a socket is
// not. Links can be cut, and stalled in either direction.
package simnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Net is a network. It is safe for concurrent use.
type Net struct {
	mu        sync.Mutex
	listeners map[string]*Listener
	next      int
}

// New returns a network without listeners.
func New() *Net { return &Net{listeners: map[string]*Listener{}} }

// addr is the address of a listener or a connection.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// Listen returns a listener with an address of its own.
func (n *Net) Listen() *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	l := &Listener{net: n, addr: addr(fmt.Sprintf("127.0.0.1:%d", n.next)), conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[string(l.addr)] = l
	return l
}

// Dial connects to a listener. The link is the one that the connection belongs to; nil for one
// of its own. The error is ECONNREFUSED without a listener.
func (n *Net) Dial(address string, link *Link) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := Pipe(link)
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	}
}

// Listener is a listener of a [Net].
type Listener struct {
	net    *Net
	addr   addr
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept returns the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close closes the listener. Connections stay.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
	})
	return nil
}

// Addr returns the listener's address.
func (l *Listener) Addr() net.Addr { return l.addr }

// Direction is a direction of a link, from the side that made the connection.
type Direction uint8

// The directions.
const (
	Out Direction = iota
	In
)

// Link carries some connections. It is safe for concurrent use.
type Link struct {
	mu      sync.Mutex
	stalled [2]bool
	halves  map[*half]Direction
}

// NewLink returns a link that works.
func NewLink() *Link { return &Link{halves: map[*half]Direction{}} }

// Stall stalls a direction: data that is sent waits. It ends with stalled false.
func (l *Link) Stall(d Direction, stalled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled[d] = stalled
	for h, of := range l.halves {
		if of == d {
			h.stall(stalled)
		}
	}
}

// Stalled reports whether a direction is stalled.
func (l *Link) Stalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stalled[Out] || l.stalled[In]
}

// Cut breaks all connections of the link.
func (l *Link) Cut() {
	l.mu.Lock()
	all := make([]*half, 0, len(l.halves))
	for h := range l.halves {
		all = append(all, h)
	}
	l.mu.Unlock()
	for _, h := range all {
		h.fail(syscall.ECONNRESET)
	}
}

func (l *Link) add(h *half, d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.halves[h] = d
	h.link = l
	h.stalled = l.stalled[d]
}

func (l *Link) remove(h *half) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.halves, h)
}

// Pipe returns the two ends of a connection over a link; nil for one of its own.
func Pipe(link *Link) (here, there net.Conn) {
	if link == nil {
		link = NewLink()
	}
	out, in := newHalf(), newHalf()
	link.add(out, Out)
	link.add(in, In)
	return &conn{read: in, write: out}, &conn{read: out, write: in}
}

// room is how many bytes are in flight in one direction at most, as in a socket's buffers.
const room = 256 << 10

// half is one direction of a connection.
type half struct {
	link *Link

	mu      sync.Mutex
	moved   *sync.Cond
	data    []byte
	stalled bool
	ended   bool  // the writer has closed
	left    bool  // the reader has closed
	err     error // it is broken
	reads   deadline
	writes  deadline
}

// deadline is that of the reads or writes of a half.
type deadline struct {
	over  bool
	timer *time.Timer
}

func newHalf() *half {
	h := &half{}
	h.moved = sync.NewCond(&h.mu)
	return h
}

func (h *half) stall(stalled bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalled = stalled
	h.moved.Broadcast()
}

func (h *half) fail(err error) {
	h.mu.Lock()
	h.err = err
	h.moved.Broadcast()
	h.mu.Unlock()
	h.link.remove(h)
}

func (h *half) set(d *deadline, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.over = false
	if at.IsZero() {
		return
	}
	left := time.Until(at)
	if left <= 0 {
		d.over = true
		h.moved.Broadcast()
		return
	}
	var mine *time.Timer
	mine = time.AfterFunc(left, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if d.timer == mine {
			d.over = true
			h.moved.Broadcast()
		}
	})
	d.timer = mine
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.left:
			return 0, net.ErrClosed
		case h.err != nil:
			return 0, h.err
		case h.reads.over:
			return 0, os.ErrDeadlineExceeded
		case h.stalled:
		case len(h.data) > 0:
			n := copy(b, h.data)
			h.data = h.data[n:]
			h.moved.Broadcast()
			return n, nil
		case h.ended:
			return 0, io.EOF
		}
		h.moved.Wait()
	}
}

// write writes the bytes that there is room for, and waits for room only when wait is set.
func (h *half) write(b []byte, wait bool) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.ended:
			return 0, net.ErrClosed
		case h.err != nil:
			return 0, h.err
		case h.left:
			return 0, syscall.EPIPE
		case h.writes.over:
			return 0, os.ErrDeadlineExceeded
		case len(h.data) < room:
			n := min(len(b), room-len(h.data))
			h.data = append(h.data, b[:n]...)
			h.moved.Broadcast()
			return n, nil
		case !wait:
			return 0, nil
		}
		h.moved.Wait()
	}
}

// end closes one side of the half.
func (h *half) end(reader bool) {
	h.mu.Lock()
	if reader {
		h.left = true
	} else {
		h.ended = true
	}
	both := h.left && h.ended
	for _, d := range []*deadline{&h.reads, &h.writes} {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	h.moved.Broadcast()
	h.mu.Unlock()
	if both {
		h.link.remove(h)
	}
}

// conn is one end of a connection.
type conn struct{ read, write *half }

func (c *conn) Read(b []byte) (int, error) { return c.read.read(b) }

func (c *conn) Write(b []byte) (n int, err error) {
	for {
		some, err := c.write.write(b[n:], true)
		n += some
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// WriteNow writes as much of the buffers as there is room for.
func (c *conn) WriteNow(buffers [][]byte) (n int, err error) {
	for _, b := range buffers {
		some, err := c.write.write(b, false)
		n += some
		if err != nil || some < len(b) {
			return n, err
		}
	}
	return n, nil
}

func (c *conn) Close() error {
	c.read.end(true)
	c.write.end(false)
	return nil
}

func (c *conn) CloseRead() error {
	c.read.end(true)
	return nil
}

func (c *conn) CloseWrite() error {
	c.write.end(false)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addr("127.0.0.1:1") }
func (c *conn) RemoteAddr() net.Addr { return addr("127.0.0.1:2") }

func (c *conn) SetDeadline(t time.Time) error {
	c.read.set(&c.read.reads, t)
	c.write.set(&c.write.writes, t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(&c.read.reads, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.write.set(&c.write.writes, t)
	return nil
}

// SyscallConn returns a connection that can write without waiting; no other method of a socket works.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

// rawConn is a conn as its own socket.
type rawConn struct{ *conn }

func (rawConn) Control(func(uintptr)) error    { return errors.ErrUnsupported }
func (rawConn) Read(func(uintptr) bool) error  { return errors.ErrUnsupported }
func (rawConn) Write(func(uintptr) bool) error { return errors.ErrUnsupported }
