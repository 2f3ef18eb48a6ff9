//go:build unix && !linux

package edge

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
