package janitor

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"rejoin/shared/natstest"
)

// network is a connection to NATS that can be held up: nothing gets through meanwhile,
// and everything after.
type network struct {
	url  string
	mu   sync.RWMutex           // held for writing while it is held up
	lost atomic.Pointer[string] // requests that begin so nobody hears
}

// lose has nobody hear what is sent to subjects that begin so; with none, all is heard.
func (n *network) lose(subjects string) { n.lost.Store(&subjects) }

// garble makes other subjects, of the same length, of those that nobody is to hear.
func (n *network) garble(sent []byte) []byte {
	if lost := n.lost.Load(); lost != nil && *lost != "" {
		return bytes.ReplaceAll(sent, []byte(*lost), bytes.Repeat([]byte("x"), len(*lost)))
	}
	return sent
}

func newNetwork(t *testing.T, srv *natstest.Server) *network {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{url: "nats://" + ln.Addr().String()}
	var wg sync.WaitGroup
	to := strings.TrimPrefix(srv.URL(), "nats://")
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			wg.Go(func() { n.copy(in, out, func(got []byte) []byte { return got }) })
			wg.Go(func() { n.copy(out, in, n.garble) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return n
}

func (n *network) copy(to io.WriteCloser, from io.ReadCloser, change func([]byte) []byte) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		got, err := from.Read(buf)
		if err != nil {
			return
		}
		n.mu.RLock()
		_, err = to.Write(change(buf[:got]))
		n.mu.RUnlock()
		if err != nil {
			return
		}
	}
}
