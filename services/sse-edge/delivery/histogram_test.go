package delivery

import (
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"rejoin/shared/must"
)

func histogramOf(t *testing.T, d *delivery) *dto.Histogram {
	t.Helper()
	ch := make(chan prometheus.Metric, 1)
	d.Collect(ch)
	var m dto.Metric
	must.NoError(t, (<-ch).Write(&m))
	return m.GetHistogram()
}

func TestMetrics_Histogram(t *testing.T) {
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
		ln := must.Value((&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0"))(b)
		read := make(chan struct{})
		go func() {
			defer close(read)
			conn, err := ln.Accept()
			for buffer := make([]byte, 1<<20); err == nil; {
				_, err = conn.Read(buffer)
			}
		}()
		conn := must.Value((&net.Dialer{}).DialContext(b.Context(), "tcp", ln.Addr().String()))(b)
		raw := must.Value(RawOf(conn))(b)
		var socket sockets
		frame := [][]byte{make([]byte, 512)}
		for b.Loop() {
			must.Value(socket.write(raw, frame))(b)
		}
		_, _ = conn.Close(), ln.Close()
		<-read
	})
}
