package ingest_test

import (
	"context"
	"errors"
	"net"
	"sync"
)

// link is a dialer whose connections a test can cut and heal, while the server
// goes on for everybody else.
type link struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// Dial implements nats.CustomDialer.
func (l *link) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errors.New("the link is cut")
	}
	var d net.Dialer
	conn, err := d.DialContext(context.Background(), network, address)
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, conn := range l.conns {
		if cut {
			_ = conn.Close()
		}
	}
}
