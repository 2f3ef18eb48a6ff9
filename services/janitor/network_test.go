package janitor

import (
	"bytes"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
)

// network is a connection to NATS that can be held up: nothing gets through meanwhile,
// and everything after. It can also lose the messages to some subjects, or break.
type network struct {
	url   string
	mu    sync.RWMutex           // held for writing while it is held up
	lost  atomic.Pointer[string] // requests that begin so are lost
	wrote atomic.Int64           // how many changes were sent
	most  atomic.Int64           // with so many it breaks; 0: never
}

// lose drops the messages to subjects that begin so; with none, nothing is dropped.
func (n *network) lose(subjects string) { n.lost.Store(&subjects) }

// breakAfter breaks it for good instead of sending more than so many changes.
func (n *network) breakAfter(changes int) {
	n.wrote.Store(0)
	n.most.Store(int64(changes) + 1)
}

func (n *network) broken() bool { return n.most.Load() > 0 && n.wrote.Load() >= n.most.Load() }

// changes matches the changes of a janitor that others may see, as they are sent.
var changes = regexp.MustCompile(`H?PUB (\$KV\.MCP_SESSIONS\.|\$JS\.API\.STREAM\.(MSG\.DELETE|PURGE)\.MCP_|mcp\.)`)

// pass returns the part of the sent bytes that gets through.
func (n *network) pass(sent []byte) []byte {
	for _, at := range changes.FindAllIndex(sent, -1) {
		if n.wrote.Add(1); n.broken() {
			return sent[:at[0]]
		}
	}
	if lost := n.lost.Load(); lost != nil && *lost != "" { // to others, of the same length
		return bytes.ReplaceAll(sent, []byte(*lost), bytes.Repeat([]byte("x"), len(*lost)))
	}
	return sent
}

func newNetwork(t *testing.T, srv *natstest.Server) *network {
	t.Helper()
	ln := must.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
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
			wg.Go(func() { n.copy(in, out, whole) })
			wg.Go(func() { n.copy(out, in, n.pass) })
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
		if err != nil || n.broken() {
			return
		}
	}
}

func whole(got []byte) []byte { return got }
