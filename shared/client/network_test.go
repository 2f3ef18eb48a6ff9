package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// network connects clients and a server without sockets, inside a bubble whose
// clock moves only while all are idle.
type network struct {
	accepting chan net.Conn
	closed    chan struct{}
	close     sync.Once

	mu     sync.Mutex
	faults []connFault // of the next connections
	dials  int
}

// connFault is a fault of a connection. The zero value is no fault.
type connFault struct {
	Refused bool
	// CutRead and CutWrite are after how many bytes that the server has read or
	// written the connection breaks; 0 means never.
	CutRead, CutWrite int
	// LostAfter is when the network begins to drop the server's bytes; 0 means never.
	LostAfter time.Duration
}

var errRefused = errors.New("connection refused")

// serve returns a client that sends every request to a handler, over connections
// with these faults. Everything ends with the test.
func serve(t *testing.T, handler http.Handler, faults ...connFault) (*network, *http.Client) {
	t.Helper()
	n := &network{accepting: make(chan net.Conn), closed: make(chan struct{}), faults: faults}
	var serving, handling sync.WaitGroup
	//nolint:gosec // its clients are this test's
	server := &http.Server{Protocols: protocols(true, true), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handling.Add(1)
		defer handling.Done()
		handler.ServeHTTP(w, r)
	})}
	serving.Go(func() { _ = server.Serve(n) }) // until it is closed
	transport := &http.Transport{DialContext: n.dial, MaxIdleConnsPerHost: 8}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		serving.Wait()
		synctest.Wait() // until no request begins any more
		handling.Wait() // some continue without their client
	})
	return n, &http.Client{Transport: transport}
}

// protocols returns HTTP/1, HTTP/2 without TLS, or both.
func protocols(one, two bool) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(one)
	p.SetUnencryptedHTTP2(two)
	return &p
}

// isDefault has publishers and subscribers without an HTTPClient use the network.
func (n *network) isDefault(t *testing.T, http2 bool) {
	t.Helper()
	before := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = before })
	http.DefaultTransport = &http.Transport{DialContext: n.dial, Protocols: protocols(!http2, http2), IdleConnTimeout: 90 * time.Second}
}

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	n.dials++
	var fault connFault
	if len(n.faults) > 0 {
		fault, n.faults = n.faults[0], n.faults[1:]
	}
	n.mu.Unlock()
	if fault.Refused {
		return nil, errRefused
	}
	client, server := net.Pipe()
	select {
	case n.accepting <- &faultyConn{Conn: server, fault: fault, begun: time.Now()}:
		return client, nil
	case <-n.closed:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case conn := <-n.accepting:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	n.close.Do(func() { close(n.closed) })
	return nil
}

func (n *network) Addr() net.Addr { return &net.IPAddr{} }

// faultyConn is the server's end of a connection that breaks.
type faultyConn struct {
	net.Conn
	fault         connFault
	begun         time.Time
	read, written int
}

func (c *faultyConn) Read(p []byte) (int, error) {
	if cut := c.fault.CutRead; cut > 0 {
		if c.read == cut {
			_ = c.Close()
			return 0, io.EOF
		}
		p = p[:min(len(p), cut-c.read)]
	}
	n, err := c.Conn.Read(p)
	c.read += n
	return n, err
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if lost := c.fault.LostAfter; lost > 0 && time.Since(c.begun) > lost {
		return len(p), nil
	}
	cut := c.fault.CutWrite
	if cut == 0 || c.written+len(p) < cut {
		n, err := c.Conn.Write(p)
		c.written += n
		return n, err
	}
	n, _ := c.Conn.Write(p[:max(cut-c.written, 0)])
	c.written += n
	_ = c.Close()
	return n, io.ErrClosedPipe
}
