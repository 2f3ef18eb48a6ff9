package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// dial opens a connection to the address of a flag, on which nothing lasts without end.
func (p *proc) dial(flag string) net.Conn {
	p.t.Helper()
	return p.secure(flag, p.dialTCP(flag))
}

// dialTLS opens a connection to the edge that is cut when the test ends.
func (p *proc) dialTLS(config *tls.Config) net.Conn {
	p.t.Helper()
	return tls.Client(p.dialTCP("--edge-addr"), config)
}

func (p *proc) dialTCP(flag string) net.Conn {
	p.t.Helper()
	return webtest.Dial(p.t, p.addrs[flag], "")
}

// metric returns the value of a series; name is what stands before it in /metrics.
func (p *proc) metric(name string) float64 {
	p.t.Helper()
	for line := range strings.Lines(do(p.t, http.MethodGet, p.url("--admin-addr")+"/metrics", "").body) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			value := must.Value(strconv.ParseFloat(strings.TrimSpace(text), 64))(p.t)
			return value
		}
	}
	p.t.Fatalf("there is no metric %s", name)
	return 0
}

// heap returns the bytes of the heap that are in use.
func (p *proc) heap() float64 {
	p.t.Helper()
	do(p.t, http.MethodGet, p.url("--admin-addr")+"/debug/pprof/heap?gc=1", "")
	return p.metric("go_memstats_heap_alloc_bytes")
}

// A client that sends slowly, or stops, is cut off, and delays no other.
func TestAttackSlowloris(t *testing.T) {
	p := startProc(t, "--header-timeout=6s", "--body-timeout=6s", "--ack-timeout=9s")
	const each = 10
	head := "POST " + streamPath("slow", "s") + " HTTP/1.1\r\nHost: localhost\r\n"
	lines := head + "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	for name, attack := range map[string]struct{ begin, trickle string }{
		"nothing":               {"", ""},
		"headers, stopped":      {head, ""},
		"headers, trickled":     {head, "X-A: b\r\n"},
		"header, trickled":      {head + "X-A: ", "a"},
		"body, stopped":         {head + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", ""},
		"body, trickled":        {head + "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n", " "},
		"chunks, trickled":      {head + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(" ")},
		"line, stopped":         {lines + chunk(numbered(1)+"\n{"), ""},
		"line, trickled":        {lines + chunk(numbered(1)+"\n"), chunk("x")},
		"empty lines, trickled": {lines, chunk("\n")},
		"each, trickled":        {strings.Replace(lines, "/events", "/events?results=each", 1) + chunk(numbered(1)+"\n"), chunk("x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := p.in(t)
			var all sync.WaitGroup
			for i := range each {
				conn := p.dial([]string{"--edge-addr", "--ingest-addr"}[i%2])
				over := make(chan struct{})
				all.Go(func() { trickle(conn, attack.begin, attack.trickle, over) })
				all.Go(func() {
					defer close(over)
					if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("it is not cut off")
					}
				})
			}
			p.publish("good-"+strings.Map(letters, name), "s", 1, 3)
			all.Wait()
		})
	}
	// Who sends a line now and then continues.
	t.Run("a slow publisher", func(t *testing.T) {
		t.Parallel()
		p := p.in(t)
		conn := p.dial("--edge-addr")
		_, _ = io.WriteString(conn, lines) // the answer tells whether it arrived
		for n := range 70 {
			_, _ = io.WriteString(conn, chunk(numbered(n+1)+"\n"))
			time.Sleep(100 * time.Millisecond)
		}
		_, _ = io.WriteString(conn, "0\r\n\r\n")
		a := readAnswer(t, conn)
		if a.status != http.StatusOK || !strings.Contains(a.body, `"accepted":70,`) || !strings.Contains(a.body, `"stopped":null`) {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

func letters(r rune) rune {
	if r == ' ' || r == ',' {
		return '-'
	}
	return r
}

// trickle sends a piece again and again, until over is closed.
func trickle(conn net.Conn, begin, piece string, over <-chan struct{}) {
	_, err := io.WriteString(conn, begin)
	for err == nil && piece != "" {
		select {
		case <-over:
			return
		case <-time.After(50 * time.Millisecond):
			_, err = io.WriteString(conn, piece)
		}
	}
}

func readAnswer(t testing.TB, conn net.Conn) answer {
	t.Helper()
	a := must.Value(whole(http.ReadResponse(bufio.NewReader(conn), nil)))(t) //nolint:bodyclose // whole closes it
	return a
}

// Beyond the limit new clients get a retry; those who are there notice nothing,
// and when the flood is over nothing of it is left.
func TestAttackConnectionFlood(t *testing.T) {
	t.Parallel() // it waits most of the time, and what it measures is the program's own
	const limit, flood, silent = 20, 300, 700
	p := startProc(t, "--max-connections="+strconv.Itoa(limit), "--header-timeout=10s", "--pprof")
	path := streamPath("flood", "s")
	p.publish("flood", "s", 1, 1)
	heap, goroutines := p.heap(), p.metric("go_goroutines")

	taps := make([]*tap, limit*3/4) // more of them are not for one address
	for i := range taps {
		taps[i] = p.subscribe(path, "")
		taps[i].connected()
		taps[i].numbers(1, 1)
	}
	for range silent {
		p.dial("--edge-addr")
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range flood / 10 {
				a, err := try(http.MethodGet, p.api()+path, "", "Accept", "text/event-stream")
				if err != nil || a.status != http.StatusOK || !strings.HasPrefix(a.body, "retry: ") || strings.Contains(a.body, "event:") {
					t.Errorf("%d %q, %v", a.status, a.body, err)
				}
				a, err = try(http.MethodGet, p.api()+path, "", "Accept", jsonType)
				if err != nil || a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
					t.Errorf("%d %q, %v", a.status, a.body, err)
				}
			}
		})
	}
	p.publish("flood", "s", 2, 10)
	all.Wait()
	for _, s := range taps {
		s.numbers(2, 10)
		s.cut()
	}
	waittest.Until(t, "no client is connected", func() bool { return p.metric("rejoin_edge_connections") == 0 })
	waittest.Until(t, "the goroutines have gone", func() bool { return p.metric("go_goroutines") < goroutines+limit })
	waittest.Until(t, "the memory is free", func() bool { return p.heap() < heap+32<<20 })
	p.subscribe(path, "").connected()
}

// Who says that it is another client at every request is still the same one.
func TestAttackForwardedForSpoofing(t *testing.T) {
	limits := []string{"--ack-timeout=9s", "--max-publish-rate=1", "--max-address-connect-rate=1"}
	for name, flags := range map[string][]string{"no proxy": nil, "behind a proxy": {"--trusted-proxies=127.0.0.1,10.0.0.0/8"}} {
		t.Run(name, func(t *testing.T) {
			p := startProc(t, append(limits, flags...)...)
			client := ", 203.0.113.1"
			if flags == nil {
				client = ""
			}
			for flag, try := range map[string][3]string{
				"--edge-addr":   {http.MethodGet, streamPath("s", "t"), ""},
				"--ingest-addr": {http.MethodPost, streamPath("s", "t"), numbered(1)},
			} {
				refused := false
				for i := 0; i < 300 && !refused; i++ {
					a := do(t, try[0], p.url(flag)+try[1], try[2], "Content-Type", jsonType, "Accept", jsonType, "X-Real-Ip", fmt.Sprint("198.51.100.", i%250),
						"Forwarded", fmt.Sprint("for=198.51.100.", i), "X-Forwarded-For", fmt.Sprintf("198.51.%d.%d, 10.0.0.%d%s", i%250, i%250, i%250, client))
					refused = a.status == http.StatusTooManyRequests && stringIn(t, a.body, "code") == "rate_limited" && a.header.Get("Retry-After") == "1"
				}
				if !refused {
					t.Errorf("%s refuses nothing", flag)
				}
			}
			if flags == nil {
				return
			}
			a := do(t, http.MethodPost, p.api()+streamPath("s", "t"), numbered(1), "Content-Type", jsonType, "X-Forwarded-For", "203.0.113.1, 203.0.113.2")
			a.got(t, http.StatusCreated)
		})
	}
}
