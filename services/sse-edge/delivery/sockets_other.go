//go:build unix && !linux

package delivery

import (
	"errors"
	"syscall"
)

// sockets writes to sockets without ever waiting. It is used by one goroutine.
type sockets struct{}

// write writes as much of the buffers as a socket takes at once, and returns how much
// that was.
func (s *sockets) write(conn syscall.RawConn, buffers [][]byte) (n int, err error) {
	for _, b := range buffers {
		written := 0
		var writeErr error
		if err := conn.Write(func(fd uintptr) bool {
			written, writeErr = syscall.Write(int(fd), b)
			return !errors.Is(writeErr, syscall.EINTR)
		}); err != nil {
			return n, err
		}
		n += max(written, 0)
		switch {
		case errors.Is(writeErr, syscall.EAGAIN):
			return n, nil
		case writeErr != nil:
			return n, writeErr
		case written < len(b):
			return n, nil
		}
	}
	return n, nil
}

// HungUp reports whether the peer of a connection has ended its side, and all its bytes were read.
func HungUp(conn syscall.RawConn) (gone bool) {
	err := conn.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil
	})
	return gone || err != nil
}
