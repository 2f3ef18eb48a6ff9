package edge

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/racetest"
	"rejoin/shared/sse"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

// An event that was published before its client connected is not counted as a delivery.
func TestMetrics_DeliveryOfLiveEvents(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url() + "/v1/sessions/s/streams/a/events"
	delivered := func() uint64 {
		var m dto.Metric
		must.NoError(t, s.subs.Connections.Metrics.Delivery.Write(&m))
		return m.GetHistogram().GetSampleCount()
	}
	waits := func() { // for the worker that has the stream; its second answer comes in a round of its own
		t.Helper()
		waittest.Until(t, "the stream waits", func() bool {
			_, open := s.subs.Connections.Of(t.Context(), "s", 1)
			return open == 1
		})
		s.subs.Connections.Of(t.Context(), "s", 1)
	}
	f.Publish("a", 3)
	waittest.Until(t, "the window has them", func() bool { return s.subs.Parts.Of("s").Stats().Events == 3 })
	c := connect(t, url)
	for range 3 {
		c.Next("message")
	}
	waits()
	for n := uint64(1); n <= 2; n++ {
		f.Publish("a", 1)
		last := c.Next("message")
		waittest.Until(t, "it is counted", func() bool { return delivered() == n })
		if n == 2 {
			c.Close()
			waittest.Until(t, "the client is gone", func() bool {
				_, open := s.subs.Connections.Of(t.Context(), "s", 1)
				return open == 0
			})
			f.Publish("a", 2)
			waittest.Until(t, "the window has these", func() bool { return s.subs.Parts.Of("s").Stats().Events == 7 })
			again := connect(t, url, "Last-Event-ID", last.ID)
			again.Next("message")
			again.Next("message")
			waits()
			f.Publish("a", 1)
			again.Next("message")
		}
	}
	waittest.Until(t, "only the live one is counted", func() bool { return delivered() >= 3 })
	if n := delivered(); n != 3 {
		t.Errorf("%d deliveries are counted, want 3", n)
	}
}

// A client counts as blocked while it does not read. Its waiting events are counted as sent
// only when they are, and once.
func TestMetrics_BlockedClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) {
		crowded(c)
		c.WriteTimeout = time.Hour // longer than publishing takes on a slow machine
	})
	c := must.Value(attend(t.Context(), "http://"+s.Addr().String(), streamPath, "", true))(t)
	defer func() { _ = c.conn.Close() }()
	must.NoError(t, c.watch(0, 1))
	events := 0
	waittest.Until(t, "the client is blocked", func() bool {
		f.publishPadded("a", 100, 8<<10)
		events += 100
		s.has(t, uint64(events)) //nolint:gosec // not negative; an edge that is behind for long ends its streams
		return testutil.ToFloat64(s.subs.Connections.Metrics.Blocked) == 1
	})
	if sent := testutil.ToFloat64(s.subs.Connections.Metrics.Sent); sent == 0 || sent >= float64(events) {
		t.Errorf("%v of %d events are sent to a client that does not read", sent, events)
	}
	// With its small buffer the kernel would send the rest in steps of 16 KB, five a second.
	must.NoError(t, c.conn.(*net.TCPConn).SetReadBuffer(1<<20)) //nolint:errcheck,forcetypeassert // it is one
	must.NoError(t, c.watch(events, 1))
	waittest.Until(t, "it is not blocked", func() bool { return testutil.ToFloat64(s.subs.Connections.Metrics.Blocked) == 0 })
	waittest.Until(t, "all are counted", func() bool { return testutil.ToFloat64(s.subs.Connections.Metrics.Sent) >= float64(events) })
	if sent := testutil.ToFloat64(s.subs.Connections.Metrics.Sent); sent != float64(events) {
		t.Errorf("%v events are sent, want %d", sent, events)
	}
	if testutil.ToFloat64(s.subs.Connections.Metrics.BlockedWrites) == 0 {
		t.Error("no blocked write is counted")
	}
}

// Clients that do not read hold no more than their share of the memory, whatever the form of their event,
// and leave room for others. A connection that ends releases its memory.
func TestMemory_SlowClients(t *testing.T) {
	const clients, size, capacity = min(30, 60/racetest.Slowdown), 6 << 20, 20 << 20 // the detector looks at each byte
	proxy := must.Value(web.NewClients(web.ClientsConfig{TrustedProxies: []string{"127.0.0.1"}}))(t)
	for _, tt := range []struct {
		name, path string
		below      bool // the window
		counts     bool
		slow       bool // those for which there is no memory end; others wait, or need none
	}{
		{"stream in the window", streamPath, false, false, false},
		{"stream below the window", streamPath, true, true, false},
		{"envelope in the window", streamPath + "?envelope=true", false, true, true},
		{"flow below the window", flowPath, true, true, false},
		{"group in the window", "/v1/events?session=s", false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			f.memory = quota.NewPool(capacity)
			f.publishPadded("a", 1, 1)
			if tt.below {
				f.publishPadded("a", 1, size)
			}
			s, _ := f.startService(func(c *Config) {
				crowded(c)
				c.Clients, c.WindowBytes, c.WriteTimeout, c.LogReads = proxy, 16<<20, time.Hour, 2
				if tt.below {
					c.WindowBackfill = -1
				}
			})
			m := s.subs.Connections.Metrics
			after := ""
			if tt.below { // as a client that resumes: others need the oldest event
				after = poll(t, s.url()+tt.path+"?limit=1").Cursor
			}
			before := liveHeap()
			var stalled []*spectator
			t.Cleanup(func() {
				for _, c := range stalled {
					_ = c.conn.Close()
				}
			})
			waittest.Until(t, "all have come", func() bool { // one by one; a client that is sent away after it was opened counts in both
				if opened, refused := testutil.ToFloat64(m.Opened), testutil.ToFloat64(m.Refused.WithLabelValues("unavailable")); opened+refused < float64(len(stalled)) {
					return false
				} else if opened >= clients {
					return true
				}
				c := must.Value(attend(t.Context(), s.url(), tt.path, after, true))(t)
				stalled = append(stalled, c)
				return false
			})
			if !tt.below {
				f.publishPadded("a", 1, size)
			}
			waittest.Until(t, "clients are blocked", func() bool { return testutil.ToFloat64(m.Blocked) > 0 })
			if tt.counts {
				waittest.Until(t, "what they hold counts", func() bool { return f.memory.Used() > size/8 })
			}
			reader := subscribe(t, s.url()+tt.path, "X-Forwarded-For", "203.0.113.1")
			reader.Decoder = sse.NewDecoder(reader.Response.Body, 2*size)
			reader.Next("connect")
			reader.Next("message")
			if e := reader.Next("message"); len(e.Data) < size {
				t.Errorf("another client receives %d bytes", len(e.Data))
			}
			slow := func() bool { return testutil.ToFloat64(m.Closed.WithLabelValues("slow")) > 0 }
			if tt.slow {
				waittest.Until(t, "slow clients have ended", slow)
			} else if slow() {
				t.Error("a slow client has ended")
			}
			waittest.NoError(t, func() error { // a read under way, and NATS, may hold more for a moment
				if now := liveHeap(); now > before+5*capacity { // all events are 180 MiB; the window and the server take some
					return fmt.Errorf("%d clients hold %d MiB, of a budget of %d MiB", clients, (now-before)>>20, capacity>>20)
				}
				return nil
			})
			for _, c := range stalled {
				_ = c.conn.Close()
			}
			reader.Close()
			waittest.Until(t, "nothing counts", func() bool { return testutil.ToFloat64(m.Connections) == 0 && f.memory.Used() == 0 })
			again := subscribe(t, s.url()+tt.path)
			again.Decoder = sse.NewDecoder(again.Response.Body, 2*size)
			again.Next("connect")
			again.Next("message")
		})
	}
}

// A client below the window for whose events there is no memory receives heartbeats, and the events once there is.
func TestMemory_ClientWaits(t *testing.T) {
	const capacity = 4 << 20
	const others = capacity * 7 / 8 // take so much: there is room for a group without events
	for name, path := range map[string]string{"stream": streamPath, "group": "/v1/events?session=s"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.memory = quota.NewPool(capacity)
			f.publishPadded("a", 2, capacity/2) // more than a share, as it counts
			s, _ := f.startService(func(c *Config) { c.Heartbeat, c.WindowBackfill = 10*time.Millisecond, -1 })
			if !f.memory.Take("", others) {
				t.Fatal("the memory is taken")
			}
			c := subscribe(t, s.url()+path)
			beat := make([]byte, 3)
			if _, err := io.ReadFull(c.Response.Body, beat); err != nil || string(beat) != ":\n\n" {
				t.Errorf("while it waits it receives %q, %v", beat, err)
			}
			f.memory.Give("", others)
			c.Next("connect")
			c.Next("message")
			c.Next("message")
			waittest.Until(t, "no event counts", func() bool { return f.memory.Used() < capacity/2 })
		})
	}
}

// liveHeap returns the bytes of the heap in use.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The events after a gap that is answered as an error are not sent.
func TestProblems_NoEvents(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	f.Publish("a", 3)
	waittest.Until(t, "the window has them", func() bool { return s.subs.Parts.Of("s").Stats().Events == 3 })
	url := s.url() + streamPath + "?after=nonsense"
	for _, accept := range []string{"application/json", "text/event-stream"} {
		a := edgetest.Ask(t, http.MethodGet, url+"&on_gap=error", "Accept", accept)
		if sent := testutil.ToFloat64(s.subs.Connections.Metrics.Sent); a.StatusCode != http.StatusGone || sent != 0 {
			t.Errorf("%s: %d, and %v events are counted as sent", accept, a.StatusCode, sent)
		}
	}
	if n := len(poll(t, url).Events); n != 3 || testutil.ToFloat64(s.subs.Connections.Metrics.Sent) != 3 {
		t.Errorf("%v of %d events are counted as sent", testutil.ToFloat64(s.subs.Connections.Metrics.Sent), n)
	}
}
