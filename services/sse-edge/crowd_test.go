package edge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/sse"
	"rejoin/shared/waittest"
)

// spectator is one of a crowd of clients on bare sockets.
type spectator struct {
	conn net.Conn
	dec  *sse.Decoder
	last uint64 // sequence of the newest message
	id   string
}

// attend connects, for as long as a failing test may take. A client with a small buffer makes the edge wait for it soon.
func attend(ctx context.Context, url, path, after string, small bool) (*spectator, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(2 * waittest.Timeout)); err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); small && ok {
		if err := tcp.SetReadBuffer(16 << 10); err != nil {
			return nil, err
		}
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: %s\r\n\r\n", path, after); err != nil {
		return nil, err
	}
	return &spectator{conn: conn}, nil
}

// watch reads n messages and checks that they follow each other by step.
func (s *spectator) watch(n int, step uint64) error {
	if s.dec == nil {
		r := bufio.NewReader(s.conn)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return err
			}
			if line == "\r\n" {
				break
			}
		}
		s.dec = sse.NewDecoder(r, 1<<20)
	}
	for n > 0 {
		e, err := s.dec.Next()
		if err != nil {
			return err
		}
		switch e.Type {
		case "connect", "cursor":
		case "message":
			at := sequenceAt(e.ID)
			if s.last != 0 && at != s.last+step {
				return fmt.Errorf("%d came after %d", at, s.last)
			}
			if !bytes.HasPrefix(e.Data, []byte(`{"jsonrpc"`)) || !bytes.HasSuffix(e.Data, []byte(`}`)) {
				return fmt.Errorf("the message %d is %q", at, e.Data)
			}
			s.last, s.id = at, e.ID
			n--
		default:
			return fmt.Errorf("got %s %s", e.Type, e.Data)
		}
	}
	return nil
}

func sequenceAt(id string) (n uint64) {
	_, _ = fmt.Sscanf(id[strings.LastIndexByte(id, '_')+1:], "%d", &n)
	return n
}

func (f *fixture) publishPadded(stream string, n, size int) {
	f.t.Helper()
	data := []byte(`{"jsonrpc":"2.0","method":"m","params":{"pad":"` + strings.Repeat("x", size) + `"}}`)
	for range n {
		must.Value(f.Backend.Log.Publish(f.t.Context(), eventlog.Event{Session: "s", Stream: stream, Data: data}))(f.t)
	}
}

// each calls do for 0 to n-1, many at a time, and fails the test on errors.
func each(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	var failed atomic.Int64
	slots := make(chan struct{}, 200)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(i); err != nil && failed.Add(1) <= 5 {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n > 5 {
		t.Errorf("%d clients failed", n)
	}
}

func crowded(c *Config) {
	c.MaxConnections, c.MaxSessionConnections, c.MaxAddressConnections = 10_000, 10_000, 10_000
	c.LogReads = 8
}

// A thousand clients that do not read do not slow one that does, and when they
// read on they receive all events, from the frame that was cut in the middle.
func TestStalled_ThousandClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url := f.edge(crowded)
	const stalled, events = 1000, 120
	crowd := make([]*spectator, stalled)
	each(t, stalled, func(i int) (err error) {
		crowd[i], err = attend(t.Context(), url, streamPath, "", true)
		return err
	})
	healthy := must.Value(attend(t.Context(), url, streamPath, "", false))(t)
	crowd = append(crowd, healthy)
	t.Cleanup(func() {
		for _, s := range crowd {
			_ = s.conn.Close()
		}
	})
	f.publishPadded("a", events, 4<<10)
	must.NoError(t, healthy.watch(events, 1))
	each(t, stalled, func(i int) error {
		if i%25 != 0 {
			return nil // forty of them are enough to read half a megabyte each
		}
		return crowd[i].watch(events, 1)
	})
}

// Cursors in the window and below it, all at once.
func TestReconnect_TwoThousand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url := f.edge(func(c *Config) {
		crowded(c)
		c.WindowBytes = 128 << 10
	})
	const streams, events, clients = 20, 60, 2000
	for range events {
		for n := range streams {
			f.Publish(fmt.Sprint(n), 1)
		}
	}
	path := func(i int) string { return fmt.Sprintf("/v1/sessions/s/streams/%d/events", i%streams) }
	cursors := make([]string, streams)
	for n := range cursors {
		cursors[n] = cursorAt(t, url, path(n), uint64((events/2-1)*streams+n+1)) //nolint:gosec // small
	}
	before := consumers(t, f)
	each(t, clients, func(i int) error {
		s, err := attend(t.Context(), url, path(i), cursors[i%streams], false)
		if err != nil {
			return err
		}
		defer func() { _ = s.conn.Close() }()
		s.last = sequenceAt(cursors[i%streams])
		return s.watch(events/2, streams)
	})
	waittest.Until(t, "the reads have left no consumer behind", func() bool { return consumers(t, f) <= before })
}

func consumers(t *testing.T, f *fixture) int {
	t.Helper()
	js := must.Value(f.Server.Connect().JetStream(nats.MaxWait(30 * time.Second)))(t)
	info := must.Value(js.StreamInfo("MCP_0"))(t)
	return info.State.Consumers
}

// An edge that drains while events flow cuts no event in the middle: every client resumes
// at another edge after its last event.
func TestDrain_UnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.edge(crowded)
	s, stop := f.startService(func(c *Config) {
		crowded(c)
		c.Drain = 300 * time.Millisecond
	})
	url := s.url()
	const clients = 300
	crowd := make([]*spectator, clients)
	each(t, clients, func(i int) (err error) {
		crowd[i], err = attend(t.Context(), url, streamPath, "", false)
		return err
	})
	waittest.Until(t, "all are there", func() bool { return testutil.ToFloat64(s.subs.Connections.Metrics.Connections) == clients })
	published := make(chan struct{})
	go func() {
		defer close(published)
		for range 40 {
			f.publishPadded("a", 10, 500)
		}
	}()
	stopped := make(chan struct{})
	each(t, clients, func(i int) error {
		if i == 0 {
			go func() { defer close(stopped); stop() }()
		}
		s := crowd[i]
		defer func() { _ = s.conn.Close() }()
		if err := s.watch(1<<30, 1); !errors.Is(err, io.EOF) || s.dec == nil {
			return err
		}
		if r := s.dec.Retry(); r < 2*time.Second || r > 4*time.Second {
			return fmt.Errorf("retry is %s", r)
		}
		return nil
	})
	<-stopped
	<-published
	each(t, clients, func(i int) error {
		s, err := attend(t.Context(), other, streamPath, crowd[i].id, false)
		if err != nil {
			return err
		}
		defer func() { _ = s.conn.Close() }()
		s.last = crowd[i].last
		return s.watch(400-int(s.last), 1) //nolint:gosec // at most 400
	})
}

// An edge that stops does not wait for a client that does not read.
func TestDrain_BlockedClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, stop := f.startService(func(c *Config) {
		crowded(c)
		c.WriteTimeout = time.Hour
	})
	c := must.Value(attend(t.Context(), s.url(), streamPath, "", true))(t)
	defer func() { _ = c.conn.Close() }()
	waittest.Until(t, "the client is blocked", func() bool {
		f.publishPadded("a", 100, 8<<10)
		return testutil.ToFloat64(s.subs.Connections.Metrics.Blocked) == 1
	})
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	waittest.Receive(t, "the edge has stopped", stopped)
}
