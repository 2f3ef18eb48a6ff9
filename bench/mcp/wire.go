package mcp

import (
	"io"
	"net"
	"net/url"
	"sync"
)

// wire is a TCP connection to NATS that can be cut.
type wire struct {
	url      string
	ln       net.Listener
	handling sync.WaitGroup

	mu    sync.Mutex
	away  bool
	conns map[net.Conn]bool
}

func newWire(target string) (*wire, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return nil, err
	}
	w := &wire{url: "nats://" + ln.Addr().String(), ln: ln, conns: map[net.Conn]bool{}}
	w.handling.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			w.handling.Go(func() { w.join(conn, to.Host) })
		}
	})
	return w, nil
}

func (w *wire) join(a net.Conn, addr string) {
	defer func() { _ = a.Close() }()
	b, err := net.Dial("tcp", addr) //nolint:noctx // on this machine it does not wait
	if err != nil {
		return
	}
	defer func() { _ = b.Close() }()
	w.mu.Lock()
	w.conns[a] = true
	if w.away {
		_ = a.Close()
	}
	w.mu.Unlock()
	go func() {
		_, _ = io.Copy(b, a)
		_ = b.Close()
	}()
	_, _ = io.Copy(a, b)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, a)
}

// cut ends connections, and new ones, until restore.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = true
	for conn := range w.conns {
		_ = conn.Close()
	}
}

func (w *wire) restore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = false
}

func (w *wire) close() {
	_ = w.ln.Close()
	w.cut()
	w.handling.Wait()
}
