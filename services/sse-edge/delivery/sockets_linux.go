package delivery

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxBuffers is how many buffers one writev takes (IOV_MAX).
const maxBuffers = 1024

// sockets writes to sockets without ever waiting. It is used by one goroutine.
type sockets struct {
	buffers [][]byte
	written int
	err     error
	try     func(fd uintptr) bool // made once, so that a write allocates nothing
}

// write writes as much of the buffers as a socket takes at once, and returns how much
// that was.
func (s *sockets) write(conn syscall.RawConn, buffers [][]byte) (n int, err error) {
	if s.try == nil {
		s.try = s.attempt
	}
	for len(buffers) > 0 {
		s.buffers = buffers[:min(len(buffers), maxBuffers)]
		s.written, s.err = 0, nil
		if err := conn.Write(s.try); err != nil {
			return n, err
		}
		n += s.written
		buffers = buffers[len(s.buffers):]
		if s.err != nil || len(buffers) > 0 && s.written < total(s.buffers) {
			break
		}
	}
	s.buffers = nil
	if errors.Is(s.err, unix.EAGAIN) {
		return n, nil
	}
	return n, s.err
}

func (s *sockets) attempt(fd uintptr) bool {
	for {
		n, err := unix.Writev(int(fd), s.buffers)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		s.written, s.err = max(n, 0), err
		return true // whatever the result: do not wait
	}
}

// HungUp reports whether the peer of a connection has ended its side, even with unread bytes.
func HungUp(conn syscall.RawConn) (gone bool) {
	err := conn.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor is small
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0
	})
	return gone || err != nil
}
