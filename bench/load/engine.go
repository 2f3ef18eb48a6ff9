package load

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"rejoin/bench/measure"
)

// engine serves a part of a load's connections with one goroutine and one epoll.
type engine struct {
	load   *Load
	number int // connection i belongs to engine i mod loadEngines
	epoll  int
	server unix.SockaddrInet4
	conns  []loadConn
	opened int   // how many of conns were begun
	later  []int // of conns: those to reconnect, in the order of their time
	buf    []byte
	hist   measure.Histogram
}

func newEngine(l *Load, number int) (*engine, error) {
	ap, err := netip.ParseAddrPort(l.crowd.Target.Addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	n := (l.crowd.Clients + loadEngines - 1 - number) / loadEngines
	return &engine{
		load: l, number: number, epoll: fd, conns: make([]loadConn, n), buf: make([]byte, 1<<20),
		server: unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()},
	}, nil
}

func (e *engine) close() error {
	for i := range e.conns[:e.opened] {
		if fd := e.conns[i].fd; fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	return unix.Close(e.epoll)
}

// openedInOneGo is how many connections are begun before the answers are looked at.
const openedInOneGo = 32

func (e *engine) run() {
	events := make([]unix.EpollEvent, 512)
	for {
		select {
		case <-e.load.stop:
			return
		default:
		}
		patience, err := e.openSome()
		if err == nil {
			err = e.serve(events, patience)
		}
		if err != nil {
			e.load.fail(err)
			return
		}
	}
}

// openSome begins some of the connections that are missing, and returns for how
// many milliseconds to wait for answers then.
func (e *engine) openSome() (patience int, err error) {
	for range openedInOneGo {
		switch {
		case len(e.later) > 0 && time.Now().After(e.conns[e.later[0]].backAt):
			i := e.later[0]
			e.later = e.later[1:]
			e.load.Returned.Add(1)
			if err := e.open(i); err != nil {
				return 0, err
			}
		case e.opened == len(e.conns):
			return 20, nil
		case !e.load.crowd.AtOnce && e.load.opened.Load()-e.load.connected.Load() >= opening:
			return 1, nil
		default:
			i := e.opened
			e.opened++
			e.load.opened.Add(1)
			c := &e.conns[i]
			c.index, c.fd = i*loadEngines+e.number, -1
			if e.load.crowd.After != nil {
				var id string
				id, c.next = e.load.crowd.After(c.index)
				c.id = []byte(id)
			}
			if err := e.open(i); err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

// clientsPerAddress is how many connections come from one client address: servers
// bound that number, and there are only so many ports.
const clientsPerAddress = 4000

// open begins connection i. The request follows when the connection is there.
func (e *engine) open(i int) error {
	c := &e.conns[i]
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	c.fd, c.sent, c.inBody, c.rest = fd, false, false, c.rest[:0]
	own := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, byte(2 + c.index/clientsPerAddress)}} //nolint:gosec // a few
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, own); err != nil {
		return err
	}
	if err := unix.Connect(fd, &e.server); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connection %d: %w", c.index, err)
	}
	return e.watch(unix.EPOLL_CTL_ADD, i, unix.EPOLLOUT)
}

func (e *engine) watch(op, i int, events uint32) error {
	return unix.EpollCtl(e.epoll, op, e.conns[i].fd, &unix.EpollEvent{Events: events, Fd: int32(i)}) //nolint:gosec // a few thousand
}

// serve handles the connections that are ready.
func (e *engine) serve(events []unix.EpollEvent, patience int) error {
	n, err := unix.EpollWait(e.epoll, events, patience)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	for k := range max(n, 0) {
		i := int(events[k].Fd)
		c := &e.conns[i]
		if c.sent {
			err = e.read(i)
		} else {
			err = e.request(i)
		}
		if err != nil {
			return fmt.Errorf("connection %d before message %d: %w", c.index, c.next, err)
		}
	}
	return nil
}

func (e *engine) request(i int) error {
	c, t := &e.conns[i], e.load.crowd.Target
	stream := 0
	if e.load.crowd.Stream != nil {
		stream = e.load.crowd.Stream(c.index)
	}
	b := e.buf[:0]
	b = fmt.Appendf(b, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n", t.Path(stream), t.Addr)
	if e.load.crowd.After != nil {
		b = fmt.Appendf(b, "Last-Event-ID: %s\r\n", c.id)
	}
	b = append(b, "\r\n"...)
	if _, err := unix.Write(c.fd, b); err != nil {
		if e.load.crowd.AtOnce {
			return e.comeBack(i)
		}
		return err
	}
	c.sent = true
	return e.watch(unix.EPOLL_CTL_MOD, i, unix.EPOLLIN|unix.EPOLLRDHUP)
}

var errEnded = errors.New("the server closed the connection")

// read reads the available data and checks it.
func (e *engine) read(i int) error {
	c := &e.conns[i]
	kept := copy(e.buf, c.rest)
	if kept == len(e.buf) {
		return errors.New("a block is larger than the buffer")
	}
	n, err := unix.Read(c.fd, e.buf[kept:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil
	case (err != nil || n == 0) && e.load.crowd.AtOnce:
		return e.comeBack(i)
	case err != nil:
		return err
	case n == 0:
		return errEnded
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
	return e.body(i, data)
}

// body takes the blocks of a body that are whole, and keeps the rest.
func (e *engine) body(i int, data []byte) error {
	c := &e.conns[i]
	now := time.Now().UnixNano()
	delivered := int64(0)
	for {
		end := bytes.Index(data, []byte("\n\n"))
		if end < 0 {
			break
		}
		what, sent, err := c.block(data[:end+1], e.load.crowd.Target.Sequenced)
		if err != nil {
			return err
		}
		switch what {
		case blockMessage:
			e.hist.Add(now - sent)
			delivered++
		case blockFirst:
			e.load.connected.Add(1)
			if e.load.crowd.Stalled {
				return e.watch(unix.EPOLL_CTL_DEL, i, 0)
			}
		case blockOther:
		}
		data = data[end+2:]
	}
	c.rest = append(c.rest[:0], data...)
	if delivered > 0 {
		e.load.count(delivered)
	}
	return nil
}

// comeBackAfter is when a client reconnects whose server has set no time, as a browser
// does.
const comeBackAfter = 3 * time.Second

// comeBack has a connection that broke or that the server ended opened again.
func (e *engine) comeBack(i int) error {
	c := &e.conns[i]
	err := unix.Close(c.fd)
	if c.retry == 0 {
		c.retry = comeBackAfter
	}
	c.fd, c.backAt = -1, time.Now().Add(c.retry)
	at := len(e.later)
	for at > 0 && e.conns[e.later[at-1]].backAt.After(c.backAt) {
		at--
	}
	e.later = append(e.later, 0)
	copy(e.later[at+1:], e.later[at:])
	e.later[at] = i
	return err
}
