package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// h2 is an HTTP/2 connection of an attacker, which sends any frames.
type h2 struct {
	t      testing.TB
	conn   io.ReadWriteCloser
	framer *http2.Framer
	next   uint32 // stream
}

// dialH2 opens a connection whose streams have a window of so many bytes. A goroutine passes
// the frames that it receives to take, until it closes; nil: they are thrown away.
func (p *proc) dialH2(window uint32, take func(http2.Frame)) *h2 {
	p.t.Helper()
	config := trusting()
	config.NextProtos = []string{http2.NextProtoTLS}
	conn := tls.Client(webtest.Dial(p.t, p.addrs["--edge-addr"], ""), config)
	a := &h2{p.t, conn, http2.NewFramer(conn, conn), 1}
	must.Value(io.WriteString(conn, http2.ClientPreface))(p.t)
	_ = a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}) // it may be cut off already
	go func() {
		for {
			f, err := a.framer.ReadFrame()
			if err != nil && !errors.As(err, new(http2.StreamError)) {
				return
			}
			if take != nil && f != nil {
				take(f)
			}
		}
	}()
	return a
}

// headerBlock returns the headers of a GET that asks for a media type.
func headerBlock(target, accept string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{{":method", http.MethodGet}, {":scheme", "https"}, {":authority", "localhost"}, {":path", target}, {"accept", accept}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}) // no table, which would differ between connections
	}
	return b.Bytes()
}

// get asks for something on a stream of its own, which it returns. An attacker may be cut off.
func (a *h2) get(headers []byte) (stream uint32, err error) {
	stream = a.next
	a.next += 2
	return stream, a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers, EndStream: true, EndHeaders: true})
}

// Requests that are reset at once (CVE-2023-44487) take no more memory than others.
func TestAttackHTTP2RapidReset(t *testing.T) {
	p := startTLS(t)
	p.publish("reset", "s", 1, 1)
	headers := headerBlock(streamPath("reset", "s"), "text/event-stream")
	p.costs(func() {
		atOnce(4, func() {
			for range 5 {
				a := p.dialH2(65535, nil)
				for range 1000 {
					stream, err := a.get(headers)
					if err != nil || a.framer.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
						break
					}
				}
				_ = a.conn.Close()
			}
		})
	})
	waittest.Until(t, "no client is connected", func() bool { return p.metric("rejoin_edge_connections") == 0 })
}

// A connection has no more than 100 streams, each of which counts as a connection.
func TestAttackHTTP2Streams(t *testing.T) {
	const streams = 150
	p := startTLS(t)
	p.publish("many", "s", 1, 1)
	var mu sync.Mutex
	refused := map[uint32]bool{}
	a := p.dialH2(65535, func(f http2.Frame) {
		if reset, ok := f.(*http2.RSTStreamFrame); ok && reset.ErrCode == http2.ErrCodeRefusedStream {
			mu.Lock()
			refused[reset.StreamID] = true
			mu.Unlock()
		}
	})
	headers := headerBlock(streamPath("many", "s"), "text/event-stream")
	for range streams {
		must.Value(a.get(headers))(t)
	}
	waittest.Until(t, "the rest is refused", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(refused) == streams-100
	})
	waittest.Until(t, "each is counted", func() bool { return p.metric("rejoin_edge_connections") == 100 })
	p.publish("healthy", "s", 1, 3)
	_ = a.conn.Close()
	waittest.Until(t, "none is connected", func() bool { return p.metric("rejoin_edge_connections") == 0 })
}

// Pages that are asked for on streams without a window, which never take them.
func TestAttackHTTP2UnreadPages(t *testing.T) {
	p := startTLS(t)
	p.storeLarge("large")
	headers := headerBlock(streamPath("large", "s")+"?limit=1000", jsonType)
	p.costs(func() {
		for range 3 {
			a := p.dialH2(0, nil)
			for range 100 {
				_, _ = a.get(headers)
			}
		}
		p.pagesAreAnswered(300)
	})
}

// Headers without an end (CVE-2024-27316).
func TestAttackHTTP2EndlessHeaders(t *testing.T) {
	p := startTLS(t)
	p.costs(func() {
		atOnce(20, func() {
			a := p.dialH2(65535, nil)
			err := a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock("/", "a"), EndStream: true})
			var field bytes.Buffer
			_ = hpack.NewEncoder(&field).WriteField(hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte("x"), 8000)), Sensitive: true})
			n := 0
			for ; err == nil && n < 10_000; n++ {
				err = a.framer.WriteContinuation(1, false, field.Bytes())
			}
			if err == nil {
				t.Errorf("%d frames of headers were taken", n)
			}
		})
	})
}
