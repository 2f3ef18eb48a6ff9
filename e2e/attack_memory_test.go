package e2e

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/quota"
	"rejoin/shared/waittest"
)

// mostAbove is how many bytes of memory an attack may cost a program with default settings.
const mostAbove = 256 << 20

// memory returns a number of the program's /proc/PID/status, in bytes.
func (p *proc) memory(name string) int64 {
	p.t.Helper()
	text := must.Value(os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status"))(p.t)
	_, rest, _ := strings.Cut(string(text), "\n"+name+":")
	kilobytes, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n := must.Value(strconv.ParseInt(kilobytes, 10, 64))(p.t)
	return n << 10
}

// descriptors returns how many files and sockets the program has open.
func (p *proc) descriptors() int {
	p.t.Helper()
	all := must.Value(os.ReadDir("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/fd"))(p.t)
	return len(all)
}

// costs makes sure that an attack takes no more memory than it may, and that a healthy client
// publishes and reads while it lasts. The figures of both are a row of the table of make
// attack.
func (p *proc) costs(attack func()) {
	p.t.Helper()
	before := p.healthy("before", nil)
	start := p.memory("VmRSS")
	over, meanwhile := io.Pipe()
	took := make(chan time.Duration, 1)
	go func() { took <- p.healthy("meanwhile", over) }()
	attack()
	_ = meanwhile.Close()
	during := <-took
	p.t.Logf("ATTACK %-30s %4d MiB above the start at most; a healthy client's p99 %6.1f ms, before %6.1f ms",
		p.t.Name(), p.tookSince(start)>>20, float64(during)/1e6, float64(before)/1e6)
}

// tookSince returns the program's peak memory above that at the start, and makes sure that it is allowed.
func (p *proc) tookSince(start int64) (above int64) {
	p.t.Helper()
	above = p.memory("VmHWM") - start
	if above > mostAbove*memoryFactor {
		p.t.Errorf("it took %d MiB", above>>20)
	}
	return above
}

// startCollecting is startProc for a program that collects its garbage when it has mostAbove of it and
// of live memory, so that the peak of an attack tells how much was live, however far the collector lags
// on a loaded machine. The memory budget is a quarter of that: the same as without a limit.
func startCollecting(t testing.TB, args ...string) *proc {
	t.Helper()
	p := newProc(t, filepath.Join(t.TempDir(), "data"), args...)
	p.prepare = func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "GOMEMLIMIT="+strconv.Itoa(mostAbove)) }
	p.start()
	if budget := p.metric("rejoin_memory_budget_bytes"); budget != quota.DefaultMemory {
		t.Fatalf("the memory budget is %g bytes, not the default", budget)
	}
	return p
}

// unread opens a connection whose answers are never read, and sends something on it.
func (p *proc) unread(flag string, request io.Reader) {
	p.t.Helper()
	conn := p.dial(flag)
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10) // or the kernel takes the answer
	}
	if _, err := io.Copy(conn, request); err != nil {
		p.t.Logf("an attacker is cut off: %v", err) // as it may be
	}
}

// storeLarge stores 9 MB in a session.
func (p *proc) storeLarge(session string) {
	p.t.Helper()
	for range 9 {
		large := fmt.Sprintf(`{"jsonrpc":"2.0","method":"n","params":[%q]}`, strings.Repeat("x", 1e6))
		do(p.t, http.MethodPost, p.api()+streamPath(session, "s"), large, "Content-Type", jsonType).got(p.t, http.StatusCreated)
	}
}

// H2: 30 KB of requests for pages of 4 MB that are not read. Below the window the log is read for them.
func TestAttackUnreadPages(t *testing.T) {
	for name, flag := range map[string]string{"in the window": "--window-bytes=256MiB", "below the window": "--window-bytes=16MiB"} {
		t.Run(name, func(t *testing.T) {
			p := startCollecting(t, flag, "--ack-timeout=9s")
			p.storeLarge("large")
			p.costs(func() {
				atOnce(300, func() {
					p.unread("--edge-addr", strings.NewReader("GET "+streamPath("large", "s")+"?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n"))
				})
				p.pagesAreAnswered(300)
			})
		})
	}
}

// pagesAreAnswered waits until so many requests for pages are answered or refused, which hold no more than they may.
func (p *proc) pagesAreAnswered(n float64) {
	p.t.Helper()
	waittest.Until(p.t, "all requests are answered or refused", func() bool {
		return p.metric(`rejoin_edge_http_requests_total{code="200",method="GET"}`)+p.metric(`rejoin_edge_http_requests_total{code="503",method="GET"}`) >= n
	})
	if held := p.metric("rejoin_memory_held_bytes"); held > p.metric("rejoin_memory_budget_bytes") {
		p.t.Errorf("%g bytes are held", held)
	}
}

// H3: results of each of many lines, which are not read.
func TestAttackUnreadResults(t *testing.T) {
	p := startProc(t)
	p.costs(func() {
		atOnce(20, func() {
			p.unread("--ingest-addr", io.MultiReader(
				strings.NewReader("POST "+streamPath("each", "s")+"?results=each HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 1200000\r\n\r\n"),
				strings.NewReader(strings.Repeat("x\n", 600_000))))
		})
	})
}

// M2: large bodies of clients without a token.
func TestAttackBodiesWithoutAToken(t *testing.T) {
	p := startGuarded(t)
	start := p.memory("VmRSS")
	atOnce(200, func() {
		const size = 4<<20 - 1
		p.unread("--ingest-addr", io.MultiReader(
			strings.NewReader("POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(size)+"\r\n\r\n"),
			strings.NewReader(strings.Repeat(" ", size-1))))
	})
	p.tookSince(start)
}

// M3: bodies of numbers, and of members, of which each would be an element.
func TestAttackManyElements(t *testing.T) {
	numbers := "[" + strings.Repeat("0,", 2<<20-2) + "0]"
	var members strings.Builder
	for n := range 500_000 {
		fmt.Fprintf(&members, `,"%x":0`, n)
	}
	for name, tt := range map[string]struct{ path, body, media string }{
		"array":      {streamPath("numbers", "s"), numbers, "application/vnd.rejoin.messages+json"},
		"envelope":   {streamPath("numbers", "s"), `{"message":1` + members.String() + "}\n", "application/vnd.rejoin.envelopes+ndjson"},
		"batch":      {"/mcp", numbers, jsonType},
		"parameters": {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"` + members.String() + "}}}", jsonType},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProc(t)
			p.costs(func() {
				atOnce(8, func() {
					// A refused client may be cut off in the middle of its body.
					a, err := try(http.MethodPost, p.api()+tt.path, tt.body, "Content-Type", tt.media, "Accept", "application/json, text/event-stream")
					refused := a.status >= http.StatusBadRequest || strings.Contains(a.body, `"accepted":0`)
					if err == nil && !refused {
						t.Errorf("%d %.300s", a.status, a.body)
					}
				})
			})
		})
	}
}

// M4: polls whose clients hang up, and whose descriptors and places would be kept for a minute.
func TestAttackAbandonedPolls(t *testing.T) {
	p := startProc(t)
	p.publish("polled", "s", 1, 1)
	before := p.descriptors()
	for range 500 {
		conn := p.dial("--edge-addr")
		must.Value(io.WriteString(conn, "GET "+streamPath("polled", "other")+"?wait=60 HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\nx"))(t)
		_ = conn.Close()
	}
	began := time.Now()
	waittest.Value(t, fmt.Sprintf("about as many descriptors as the %d before", before), p.descriptors, func(n int) bool { return n < before+100 })
	if took := time.Since(began); took > 30*time.Second { // half of the polls' wait
		t.Errorf("it took %s", took)
	}
}

// from returns a client whose connections come from an address, and which keeps them.
func from(addr net.IP) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: addr}}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16, TLSClientConfig: trusting(), ForceAttemptHTTP2: true}, Timeout: waittest.Timeout}
}

// M1: sessions with as much metadata as each may have, created from many addresses.
func TestAttackSessionMetadata(t *testing.T) {
	const addresses, atOnce, each = 10, 4, 200 // twice as many as there is room for
	p := startProc(t, "--ack-timeout=30s")
	start := p.memory("VmRSS")
	body := `{"metadata":{"x":"` + strings.Repeat("x", 16<<10-8) + `"}}`
	var mu sync.Mutex
	answers := map[int]int{}
	p.costs(func() {
		var all sync.WaitGroup
		for i := range addresses {
			attacker := from(net.IPv4(127, 0, 1, byte(i+1)))
			t.Cleanup(attacker.CloseIdleConnections)
			for range atOnce {
				all.Go(func() {
					for range each / atOnce {
						req, err := newRequest(http.MethodPost, p.api()+"/v1/sessions", body, "Content-Type", jsonType)
						var a answer
						if err == nil {
							a, err = trySend(attacker, req)
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						answers[a.status]++
						mu.Unlock()
					}
				})
			}
		}
		all.Wait()
	})
	for _, status := range slices.Sorted(maps.Keys(answers)) {
		if status != http.StatusCreated && status != http.StatusTooManyRequests {
			t.Errorf("attackers are answered %d, %d times", status, answers[status])
		}
	}
	if opened := answers[http.StatusCreated]; opened == 0 || opened > 1024 { // --max-metadata-bytes of 16 KiB each
		t.Errorf("%d sessions are opened", opened)
	}
	if full := p.metric("rejoin_ingest_sessions_ratio"); full > 1 {
		t.Errorf("%g of what sessions may take is taken", full)
	}
	p.create(`{"session":"another"}`) // without metadata, of which no more is to be had
	p.publish("another", "s", 1, 1)

	p.stop()
	p.start()
	p.healthy("after", nil)
	t.Logf("ATTACK %-30s %4d MiB above the start at most, after a restart; %d of %d sessions are opened", t.Name(), p.tookSince(start)>>20, answers[http.StatusCreated], addresses*each)
}
