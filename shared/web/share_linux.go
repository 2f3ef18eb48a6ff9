package web

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// canShare says that several sockets can listen on one address, and that each gets its
// share of the connections.
const canShare = true

// share lets a socket share its address with others of the same user.
func share(_, _ string, conn syscall.RawConn) error {
	var err error
	if failed := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) //nolint:gosec // a file descriptor
	}); failed != nil {
		return failed
	}
	return err
}
