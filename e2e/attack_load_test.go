package e2e

import (
	"bufio"
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

// dial opens a connection to the address of a flag, with a deadline.
func (p *proc) dial(flag string) net.Conn {
	p.t.Helper()
	return p.secure(flag, webtest.Dial(p.t, p.addrs[flag], ""))
}

// atOnce does something n times at once.
func atOnce(n int, do func()) {
	var all sync.WaitGroup
	for range n {
		all.Go(do)
	}
	all.Wait()
}

// metric returns the value of a series; name is the text before it in /metrics.
func (p *proc) metric(name string) float64 {
	p.t.Helper()
	for line := range strings.Lines(do(p.t, http.MethodGet, p.url("--admin-addr")+"/metrics", "").body) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			return must.Value(strconv.ParseFloat(strings.TrimSpace(text), 64))(p.t)
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

// A line that arrives slowly, or stops, ends its request, although earlier ones arrived. TestServe_SlowRequest
// and TestServe_TricklingBody test the other slow requests.
func TestAttackSlowloris(t *testing.T) {
	t.Parallel() // it waits most of the time
	p := startProc(t, "--body-timeout=6s", "--ack-timeout=9s")
	lines := func(query string) string {
		return "POST " + streamPath("slow", "s") + query + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
	}
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	for name, attack := range map[string]struct{ begin, trickle string }{
		"stopped":     {lines("") + chunk(numbered(1)+"\n{"), ""},
		"trickled":    {lines("") + chunk(numbered(1)+"\n"), chunk("x")},
		"empty lines": {lines(""), chunk("\n")},
		"each":        {lines("?results=each") + chunk(numbered(1)+"\n"), chunk("x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := p.in(t)
			conn := p.dial("--ingest-addr")
			over := make(chan struct{})
			var trickling sync.WaitGroup
			trickling.Go(func() { trickle(conn, attack.begin, attack.trickle, over) })
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("it is not cut off")
			}
			close(over)
			trickling.Wait()
		})
	}
	// A publisher that sends a line now and then continues.
	t.Run("a slow publisher", func(t *testing.T) {
		t.Parallel()
		p := p.in(t)
		conn := p.dial("--edge-addr")
		_, _ = io.WriteString(conn, lines("")) // the answer tells whether it arrived
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

// Beyond the limit new clients get a retry; connected ones notice nothing, and a second flood leaves no more
// goroutines and memory than the first: the HTTP server keeps goroutines for a while.
func TestAttackConnectionFlood(t *testing.T) {
	t.Parallel() // it measures only the program
	const limit, requests, silent = 20, 300, 700
	p := startProc(t, "--max-connections="+strconv.Itoa(limit), "--pprof")
	path := streamPath("flood", "s")
	p.publish("flood", "s", 1, 1)
	taps := make([]*tap, limit*3/4) // more of them are not for one address
	for i := range taps {
		taps[i] = p.subscribe(path, "")
		taps[i].connected()
		taps[i].numbers(1, 1)
	}
	for range silent {
		p.dial("--edge-addr")
	}
	flood := func(from, to int) {
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for range requests / 10 {
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
		p.publish("flood", "s", from, to)
		all.Wait()
		for _, s := range taps {
			s.numbers(from, to)
		}
	}
	flood(2, 10)
	heap, goroutines := p.heap(), p.metric("go_goroutines")
	flood(11, 20)
	for _, s := range taps {
		s.cut()
	}
	waittest.Until(t, "no client is connected", func() bool { return p.metric("rejoin_edge_connections") == 0 })
	waittest.Until(t, "the goroutines have gone", func() bool { return p.metric("go_goroutines") < goroutines+limit })
	waittest.Until(t, "the memory is free", func() bool { return p.heap() < heap+32<<20 })
	p.subscribe(path, "").connected()
}
