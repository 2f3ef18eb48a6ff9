package delivery

import (
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/must"
)

// The NATS server's clock may be ahead.
func TestStopwatch_ClockIsAhead(t *testing.T) {
	var w stopwatch
	if took := w.since(time.Now().Add(time.Hour).UnixNano()); took != 0 {
		t.Errorf("it took %v s", took)
	}
}

// BenchmarkDelivery shows the cost of the histogram for a write of one event of 512 B.
func BenchmarkDelivery(b *testing.B) {
	b.Run("watch", func(b *testing.B) {
		var w stopwatch
		m := NewMetrics(prometheus.NewRegistry(), 1)
		for b.Loop() {
			m.Delivery.Observe(w.since(w.now - int64(3*time.Millisecond)))
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
