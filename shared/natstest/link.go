package natstest

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Link is a dialer whose connections a test can cut and heal, while the server continues for
// all other clients. The zero Link is healed. Its methods may be called at the same time.
type Link struct {
	// Before is called with the data that is about to be sent to the server; nil for nothing.
	Before func(data []byte)
	// After is called with the data from the server, which it may change, before its reader gets it; nil
	// for nothing.
	After func(data []byte)

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the link is cut")

// Dial implements nats.CustomDialer.
func (l *Link) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errCut
	}
	var d net.Dialer
	conn, err := d.DialContext(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, conn)
	return &linkConn{conn, l}, nil
}

type linkConn struct {
	net.Conn
	link *Link
}

func (c *linkConn) Write(data []byte) (int, error) {
	if c.link.Before != nil {
		c.link.Before(data)
	}
	return c.Conn.Write(data)
}

func (c *linkConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if c.link.After != nil {
		c.link.After(data[:n])
	}
	return n, err
}

// Cut ends all connections, and refuses others until Heal.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

// Heal lets connections be made again.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}
