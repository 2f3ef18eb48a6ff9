package edge

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/waittest"
)

// What was published before a client came is no delivery, however late it comes.
func TestMetrics_DeliveryOfLiveEvents(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url() + "/v1/sessions/s/streams/a/events"
	waits := func() { // for the worker that has the stream; its second answer comes in a round of its own
		t.Helper()
		waittest.Until(t, "the stream waits", func() bool {
			_, open := s.subs.Streams.Connections(t.Context(), "s", 1)
			return open == 1
		})
		s.subs.Streams.Connections(t.Context(), "s", 1)
	}
	f.Publish("a", 3)
	waittest.Until(t, "the window has them", func() bool { return s.subs.Parts.Of("s").Stats().Events == 3 })
	c := subscribe(t, url)
	c.Next("connect")
	for range 3 {
		c.Next("message")
	}
	waits()
	for n := uint64(1); n <= 2; n++ {
		f.Publish("a", 1)
		last := c.Next("message")
		waittest.Until(t, "it is counted", func() bool { return s.subs.Streams.Metrics.Delivery.Count() == n })
		if n == 2 {
			c.Close()
			waittest.Until(t, "the client is gone", func() bool {
				_, open := s.subs.Streams.Connections(t.Context(), "s", 1)
				return open == 0
			})
			f.Publish("a", 2)
			waittest.Until(t, "the window has these", func() bool { return s.subs.Parts.Of("s").Stats().Events == 7 })
			again := subscribe(t, url, "Last-Event-ID", last.ID)
			again.Next("connect")
			again.Next("message")
			again.Next("message")
			waits()
			f.Publish("a", 1)
			again.Next("message")
		}
	}
	waittest.Until(t, "only the live one is counted", func() bool { return s.subs.Streams.Metrics.Delivery.Count() >= 3 })
	if n := s.subs.Streams.Metrics.Delivery.Count(); n != 3 {
		t.Errorf("%d deliveries are counted, want 3", n)
	}
}

// A client that does not read is seen while it does not, and what waits for it is not
// counted as sent, nor twice.
func TestMetrics_BlockedClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.startService(func(c *Config) {
		crowded(c)
		c.WriteTimeout = time.Hour // or what publishing takes on a slow machine
	})
	c, err := attend(t.Context(), "http://"+s.Addr().String(), streamPath, "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.conn.Close() }()
	if err := c.watch(0, 1); err != nil {
		t.Fatal(err)
	}
	events := 0
	waittest.Until(t, "the client is blocked", func() bool {
		f.publishPadded("a", 100, 8<<10)
		events += 100
		s.has(t, uint64(events)) //nolint:gosec // not negative; an edge that is behind for long ends its streams
		return testutil.ToFloat64(s.subs.Streams.Metrics.Blocked) == 1
	})
	if sent := testutil.ToFloat64(s.subs.Streams.Metrics.Sent); sent == 0 || sent >= float64(events) {
		t.Errorf("%v of %d events are sent to a client that does not read", sent, events)
	}
	// With its small buffer the kernel would send the rest in steps of 16 KB, five a second.
	if err := c.conn.(*net.TCPConn).SetReadBuffer(1 << 20); err != nil { //nolint:errcheck,forcetypeassert // it is one
		t.Fatal(err)
	}
	if err := c.watch(events, 1); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it is not blocked", func() bool { return testutil.ToFloat64(s.subs.Streams.Metrics.Blocked) == 0 })
	waittest.Until(t, "all are counted", func() bool { return testutil.ToFloat64(s.subs.Streams.Metrics.Sent) >= float64(events) })
	if sent := testutil.ToFloat64(s.subs.Streams.Metrics.Sent); sent != float64(events) {
		t.Errorf("%v events are sent, want %d", sent, events)
	}
	if testutil.ToFloat64(s.subs.Streams.Metrics.BlockedWrites) == 0 {
		t.Error("no blocked write is counted")
	}
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
		if sent := testutil.ToFloat64(s.subs.Streams.Metrics.Sent); a.StatusCode != http.StatusGone || sent != 0 {
			t.Errorf("%s: %d, and %v events are counted as sent", accept, a.StatusCode, sent)
		}
	}
	if n := len(poll(t, url).Events); n != 3 || testutil.ToFloat64(s.subs.Streams.Metrics.Sent) != 3 {
		t.Errorf("%v of %d events are counted as sent", testutil.ToFloat64(s.subs.Streams.Metrics.Sent), n)
	}
}
