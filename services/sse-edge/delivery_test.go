package edge

import (
	"net"
	"net/http"
	"testing"
	"time"

	"rejoin/shared/waittest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

func histogramOf(t *testing.T, d *delivery) *dto.Histogram {
	t.Helper()
	ch := make(chan prometheus.Metric, 1)
	d.Collect(ch)
	var m dto.Metric
	if err := (<-ch).Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram()
}

// What was published before a client came is no delivery, however late it comes.
func TestDeliveryTimesAreThoseOfLiveEvents(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	url := s.url() + "/v1/sessions/s/streams/a/events"
	waits := func() { // for the worker that has the stream; its second answer comes in a round of its own
		t.Helper()
		waittest.Until(t, "the stream waits", func() bool {
			_, open := s.connections(t.Context(), "s", 1)
			return open == 1
		})
		s.connections(t.Context(), "s", 1)
	}
	f.Publish("a", 3)
	waittest.Until(t, "the window has them", func() bool { return s.parts.Of("s").Stats().Events == 3 })
	c := subscribe(t, url)
	c.next("connect")
	for range 3 {
		c.next("message")
	}
	waits()
	for n := uint64(1); n <= 2; n++ {
		f.Publish("a", 1)
		last := c.next("message")
		waittest.Until(t, "it is counted", func() bool { return histogramOf(t, s.metrics.delivery).GetSampleCount() == n })
		if n == 2 {
			c.close()
			waittest.Until(t, "the client is gone", func() bool {
				_, open := s.connections(t.Context(), "s", 1)
				return open == 0
			})
			f.Publish("a", 2)
			waittest.Until(t, "the window has these", func() bool { return s.parts.Of("s").Stats().Events == 7 })
			again := subscribe(t, url, "Last-Event-ID", last.ID)
			again.next("connect")
			again.next("message")
			again.next("message")
			waits()
			f.Publish("a", 1)
			again.next("message")
		}
	}
	waittest.Until(t, "only the live one is counted", func() bool { return histogramOf(t, s.metrics.delivery).GetSampleCount() >= 3 })
	if n := histogramOf(t, s.metrics.delivery).GetSampleCount(); n != 3 {
		t.Errorf("%d deliveries are counted, want 3", n)
	}
}

// A client that does not read is seen while it does not, and what waits for it is not
// counted as sent, nor twice.
func TestABlockedClientIsCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.startService(crowded)
	c, err := attend(t.Context(), "http://"+s.Addr().String(), streamPath, "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.conn.Close() }()
	if err := c.watch(0, 1); err != nil {
		t.Fatal(err)
	}
	const events = 1500
	f.publishPadded("a", events, 8<<10)
	waittest.Until(t, "the client is blocked", func() bool { return testutil.ToFloat64(s.metrics.blocked) == 1 })
	if sent := testutil.ToFloat64(s.metrics.sent); sent == 0 || sent >= events {
		t.Errorf("%v of %d events are sent to a client that does not read", sent, events)
	}
	// With its small buffer the kernel would send the rest in steps of 16 KB, five a second.
	if err := c.conn.(*net.TCPConn).SetReadBuffer(1 << 20); err != nil { //nolint:errcheck,forcetypeassert // it is one
		t.Fatal(err)
	}
	if err := c.watch(events, 1); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it is not blocked", func() bool { return testutil.ToFloat64(s.metrics.blocked) == 0 })
	waittest.Until(t, "all are counted", func() bool { return testutil.ToFloat64(s.metrics.sent) >= events })
	if sent := testutil.ToFloat64(s.metrics.sent); sent != events {
		t.Errorf("%v events are sent, want %d", sent, events)
	}
	if testutil.ToFloat64(s.metrics.blockedWrites) == 0 {
		t.Error("no blocked write is counted")
	}
}

// Behind a gap that is answered as an error there are events that nobody gets.
func TestAnErrorSendsNoEvents(t *testing.T) {
	f := newFixture(t)
	s, _ := f.startService(nil)
	f.Publish("a", 3)
	waittest.Until(t, "the window has them", func() bool { return s.parts.Of("s").Stats().Events == 3 })
	url := s.url() + streamPath + "?after=nonsense"
	for _, accept := range []string{"application/json", "text/event-stream"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"&on_gap=error", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if sent := testutil.ToFloat64(s.metrics.sent); resp.StatusCode != http.StatusGone || sent != 0 {
			t.Errorf("%s: %d, and %v events are counted as sent", accept, resp.StatusCode, sent)
		}
	}
	if n := len(poll(t, url).Events); n != 3 || testutil.ToFloat64(s.metrics.sent) != 3 {
		t.Errorf("%v of %d events are counted as sent", testutil.ToFloat64(s.metrics.sent), n)
	}
}

func TestDeliveryIsAHistogram(t *testing.T) {
	d := newDelivery()
	var w times
	d.add(&w)
	for _, took := range []time.Duration{-time.Second, time.Millisecond, time.Millisecond + 1, time.Minute} {
		w.observe(took)
	}
	d.add(&w)
	if w.n != 0 {
		t.Error("a worker's times are counted twice")
	}
	h := histogramOf(t, d)
	want := map[float64]uint64{.0005: 1, .001: 2, .0025: 3, 10: 3}
	for _, b := range h.GetBucket() {
		if n, ok := want[b.GetUpperBound()]; ok && n != b.GetCumulativeCount() {
			t.Errorf("%d up to %v s, want %d", b.GetCumulativeCount(), b.GetUpperBound(), n)
		}
	}
	if h.GetSampleCount() != 4 || h.GetSampleSum() < 60 || h.GetSampleSum() > 60.1 || len(h.GetBucket()) != len(deliveryBounds) {
		t.Errorf("%d times of %v s in %d buckets", h.GetSampleCount(), h.GetSampleSum(), len(h.GetBucket()))
	}
}

// BenchmarkDelivery shows what the histogram adds to a write of one event of 512 B.
func BenchmarkDelivery(b *testing.B) {
	b.Run("of many in a round", func(b *testing.B) {
		d, w := newDelivery(), times{}
		for stored := time.Now().UnixNano(); b.Loop(); {
			w.delivered(stored)
		}
		d.add(&w)
	})
	b.Run("of one in a round", func(b *testing.B) {
		d, w := newDelivery(), times{}
		for stored := time.Now().UnixNano(); b.Loop(); {
			w.delivered(stored)
			d.add(&w)
		}
	})
	b.Run("write", func(b *testing.B) {
		ln, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			conn, err := ln.Accept()
			for buffer := make([]byte, 1<<20); err == nil; {
				_, err = conn.Read(buffer)
			}
		}()
		conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		raw, err := rawOf(conn)
		if err != nil {
			b.Fatal(err)
		}
		var socket sockets
		frame := [][]byte{make([]byte, 512)}
		for b.Loop() {
			if _, err := socket.write(raw, frame); err != nil {
				b.Fatal(err)
			}
		}
		_, _ = conn.Close(), ln.Close()
		<-read
	})
}
