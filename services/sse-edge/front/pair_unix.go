//go:build unix

package front

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// socketBytes bounds the part of a response that waits in a pair of sockets for a slow client.
const socketBytes = 16 << 10

// socketPair returns two connections, each of which reads the bytes written to the other one.
func socketPair() (near, far *net.UnixConn, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	near, nearErr := connOf(fds[0])
	far, farErr := connOf(fds[1])
	if err := errors.Join(nearErr, farErr); err != nil {
		for _, c := range []*net.UnixConn{near, far} {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return near, far, nil
}

// connOf takes over a descriptor.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "pair")
	defer func() { _ = f.Close() }() // the connection has a copy
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.ErrUnsupported
	}
	err = u.SetWriteBuffer(socketBytes)
	return u, err
}
