package web

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// accepted is how many connections wait for a goroutine of the server. The kernel's
// own queue is at most net.core.somaxconn long, 4,096 by default, and a client that
// does not fit into it tries again after a second: in a storm of reconnects that is
// what everybody would wait for.
const accepted = 16_384

// acceptPause is how long a process that has no room for a connection waits for some.
const acceptPause = 20 * time.Millisecond

// scarce reports whether a connection could not be accepted for want of something that
// comes back when others end. fasthttp would stop serving.
func scarce(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// eagerListener accepts connections as they come, before anybody asks for them.
type eagerListener struct {
	net.Listener
	conns chan net.Conn
	err   error // of the last Accept; set before conns is closed
}

func acceptEagerly(ln net.Listener) *eagerListener {
	l := &eagerListener{Listener: ln, conns: make(chan net.Conn, accepted)}
	go func() {
		defer close(l.conns)
		for {
			conn, err := l.Listener.Accept()
			switch {
			case err == nil:
				l.conns <- conn
			case scarce(err):
				time.Sleep(acceptPause)
			default:
				l.err = err
				return
			}
		}
	}()
	return l
}

// Accept returns the next connection. After Close it returns those that were accepted
// before, and then an error.
func (l *eagerListener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, l.err
	}
	return conn, nil
}

// drop closes what was accepted and nobody asked for. Close must have been called.
func (l *eagerListener) drop() {
	for conn := range l.conns {
		_ = conn.Close()
	}
}
