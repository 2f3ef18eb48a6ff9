package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"rejoin/deploy/credentials"
	"rejoin/deploy/proxy"
	"rejoin/shared/event"
	mcprev "rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// documentedProxies have the commands for the proxies of docs/operations.md.
var documentedProxies = map[string]struct {
	frame   string // %s is the documented text
	program []string
}{
	"haproxy": {"%s", []string{"haproxy", "-db", "-f"}},
	"nginx": {
		"daemon off; pid nginx.pid; error_log stderr; worker_processes 1;\nevents {}\nhttp {\naccess_log off;\n" +
			"client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n%s}\n",
		[]string{"nginx", "-p", ".", "-c"},
	},
	"caddy": {"{\n\tadmin off\n\tauto_https off\n}\n%s", []string{"caddy", "run", "--adapter", "caddyfile", "--config"}},
}

// startDocumentedProxy runs a proxy as docs/operations.md has it before an edge, and returns its
// address.
func startDocumentedProxy(t *testing.T, name, edge string) (addr string) {
	t.Helper()
	blocks := operationsBlocks(t, name)
	if len(blocks) != 1 {
		t.Fatalf("the document has %d", len(blocks))
	}
	addr = fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t))
	text := strings.NewReplacer("127.0.0.1:8080", edge, "127.0.0.1:8088", addr).Replace(blocks[0])
	startProxy(t, addr, strings.Replace(documentedProxies[name].frame, "%s", text, 1), documentedProxies[name].program)
	return addr
}

func TestDocument_ProxiesPassEventStreams(t *testing.T) {
	t.Parallel()
	for name := range documentedProxies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, "--heartbeat=100ms")
			throughProxy(t, p, startDocumentedProxy(t, name, p.addrs["--edge-addr"]))
		})
	}
}

// throughProxy checks that no event waits in a proxy, and that the answer to an
// EventSource while the program is down lets it reconnect.
func throughProxy(t *testing.T, p *proc, addr string) {
	via := *p
	via.addrs = map[string]string{"--edge-addr": addr}
	path := streamPath("proxied", "main")
	via.publish("proxied", "main", 1, 3)
	s := via.subscribe(path, "")
	s.connected()
	s.numbers(1, 3)
	for n := 4; n <= 8; n++ { // each comes while the answer continues
		via.publish("proxied", "main", n, n)
		s.numbers(n, n)
	}
	last := s.next("cursor").ID // so does a heartbeat
	several := "/v1/events?session=proxied&session=another"
	ofGroup := via.subscribe(several+"&from=now", "")
	ofGroup.connected()
	group := ofGroup.next("cursor").ID
	if !strings.Contains(s.resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("the header is %v", s.resp.Header)
	}

	p.kill()
	for {
		if _, err := s.tryNext(); err != nil {
			break
		}
	}
	answersWithoutEdge(t, via.api(), last, group)
	for path, accept := range map[string]string{path: "*/*", "/mcp": "application/json, text/event-stream"} { // a call would wait for the rest of a stream
		a := do(t, http.MethodPost, via.api()+path, numbered(9), "Content-Type", "application/json", "Accept", accept)
		if a.status != http.StatusServiceUnavailable && a.status != http.StatusBadGateway {
			t.Errorf("a POST to %s is answered %d %q", path, a.status, a.body)
		}
	}

	p.start()
	var resumed *tap
	waittest.Until(t, "the proxy finds the program again", func() bool {
		s, err := via.tryTap(path, last)
		if err != nil {
			return false
		}
		if e, err := s.tryNext(); err != nil || e.Type != "connect" {
			s.cut()
			return false
		}
		resumed = s
		return true
	})
	via.publish("proxied", "main", 9, 12)
	resumed.numbers(9, 12)
	resumed.cut()
	ofGroup = via.subscribe(several, group)
	if !ofGroup.connected() {
		t.Errorf("%s is not resumed", group)
	}
	if e := ofGroup.next("message"); numbersIn(t, string(e.Data))[0] != 9 {
		t.Errorf("after %s comes %s", group, e.Data)
	}
	ofGroup.cut()
	waittest.Until(t, "the edge hears that clients have gone", func() bool { return p.metric("rejoin_edge_connections") == 0 })
}

// answersWithoutEdge checks the answer of a proxy at an address to event streams while no edge runs: an
// end without an event, except to an MCP client with a cursor.
func answersWithoutEdge(t *testing.T, base, ofStream, ofGroup string) {
	t.Helper()
	var asked sync.WaitGroup // at a time, since HAProxy looks for an edge for seconds
	defer asked.Wait()
	ask := func(path, id string, right func(body string) bool) {
		asked.Go(func() {
			a, err := try(http.MethodGet, base+path, "", "Accept", "text/event-stream", "Last-Event-ID", id)
			if err != nil || a.status != http.StatusOK || a.header.Get("Content-Type") != "text/event-stream" || !right(a.body) {
				t.Errorf("%s after %q is answered %d %v %q, %v", path, id, a.status, a.header, a.body, err)
			}
		})
	}
	// An event would be a message, which an application reads as JSON.
	noEvent := func(body string) bool { return strings.ReplaceAll(body, ":\n", "") == "retry: 3000\n\n" }
	ask("/v1/sessions/proxied/events", "", noEvent)
	ask(streamPath("proxied", "main"), ofStream, noEvent)
	ask("/v1/events?session=proxied&session=another", ofGroup, noEvent)
	ask("/mcp", "", noEvent)
	for _, id := range []string{ofStream, ofStream + ".0"} { // as the client has it at first, and from this answer
		ask("/mcp", id, func(body string) bool {
			before, rest, _ := strings.Cut(body, ofStream+".")
			number, after, _ := strings.Cut(rest, "\n")
			_, err := strconv.ParseUint(number, 10, 64)
			return err == nil && before == "retry: 3000\nid: " && after == "data:\n\n" && ofStream+"."+number != id
		})
	}
}

// The proxy of deploy/ answers event streams as the documented ones do.
func TestProxy_NoEdge(t *testing.T) {
	t.Parallel()
	addr, _, _ := startOwnProxy(t, "", manyConnections, fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t)))
	answersWithoutEdge(t, "http://"+addr, "main_bjqd8zw_3", "group_0elga750bcqy1p_3.p6lcjym.4_b.0k2c1qd.1")
}

// A proxy stays in a load balancer while it has any service to reach.
func TestProxy_ReadyWithAnyService(t *testing.T) {
	t.Parallel()
	for edges, want := range map[int][2]int{0: {503, 403}, 1: {503, 200}} {
		_, health, _ := startOwnProxy(t, "", manyConnections, slices.Repeat([]string{"127.0.0.1:1"}, edges)...)
		for i, path := range []string{"/health", "/ready"} {
			// Names that cannot be resolved count at first, and the address is bound after the other one.
			waittest.NoError(t, func() error {
				a, err := try(http.MethodGet, "http://"+health+path, "")
				if err == nil && a.status != want[i] {
					err = fmt.Errorf("with %d edges and nothing else %s is %d, want %d", edges, path, a.status, want[i])
				}
				return err
			})
		}
	}
}

// A connection that sends nothing is a probe, of Kubernetes or of a load balancer, and not logged: the log
// has failed requests.
func TestProxy_ProbesAreNotLogged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.NoError(t, credentials.MakeCertificates(dir))
	addr, _, log := startOwnProxy(t, " ssl crt "+filepath.Join(dir, credentials.ProxyFile), manyConnections)                            // which is probed
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // self-signed
	// Earlier connections than the first request are logged by the time of the second.
	for range 2 {
		resp, err := client.Get("https://" + addr + "/v1/limits") //nolint:noctx // of this machine
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	waittest.Until(t, "the proxy has logged requests without a service", func() bool {
		return strings.Count(log.tail(20), "/v1/limits") == 2
	})
	if lines := log.tail(20); strings.Contains(lines, "handshake") {
		t.Errorf("the proxy has logged\n%s", lines)
	}
}

// manyConnections is more than a test makes.
const manyConnections = 20_000

// startOwnProxy runs the proxy of deploy/ before edges, and returns its address, the address for health checks, and
// its output. bind has more options for its address, most is how many connections an address may have.
func startOwnProxy(t *testing.T, bind string, most int, edges ...string) (addr, health string, log *procLog) {
	t.Helper()
	addr, health = fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t))
	return addr, health, startProxy(t, addr, proxy.Local(health, edges...), []string{"haproxy", "-db", "-f"},
		"REJOIN_PROXY_BIND="+addr+bind, "REJOIN_PROXY_ADDRESS_CONNECTIONS="+fmt.Sprint(most))
}

// startProxy runs a proxy until the test ends, and returns its output.
func startProxy(t *testing.T, addr, text string, program []string, env ...string) *procLog {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.Command(program[0], append(program[1:], file)...) //nolint:gosec,noctx // launch ends it
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "HOME="+dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // nginx is several processes
	p := launch(t, cmd)
	waittest.Until(t, "the proxy listens", func() bool {
		if p.ended() {
			t.Fatal("the proxy has ended")
		}
		return listens(addr)
	})
	return p.log
}

// The proxy of deploy/ has room for so many connections; one address must not take all of it.
func TestAttackConnectionsAtTheProxy(t *testing.T) {
	t.Parallel()
	const most = 5
	addr, _, _ := startOwnProxy(t, "", most)
	// answered makes a connection, which stays open, and reports whether it is served.
	answered := func() (net.Conn, bool) {
		conn, err := net.Dial("tcp", addr) //nolint:noctx // of this machine
		if err != nil {
			return nil, false // it is closed before it is there
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(waittest.Timeout)) // fails on a closed connection only
		_, err = io.WriteString(conn, "GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		return conn, err == nil // the answer is that the proxy has no service
	}
	open := make([]net.Conn, most)
	waittest.Until(t, "the proxy has noticed that startProxy hung up", func() bool {
		for n := range open {
			var ok bool
			if open[n], ok = answered(); !ok {
				for _, conn := range open[:n] {
					_ = conn.Close()
				}
				return false
			}
		}
		return true
	})
	for range 3 {
		if _, ok := answered(); ok {
			t.Fatalf("more than %d connections of one address are served", most)
		}
	}
	_ = open[0].Close()
	waittest.Until(t, "there is room for another", func() bool {
		_, ok := answered()
		return ok
	})
}

// startEdgesProxy runs the proxy of deploy/ before edges that answer with their numbers, and hold event
// streams open.
func startEdgesProxy(t *testing.T, edges int) (addr string) {
	t.Helper()
	var addrs []string
	for i := range edges {
		edge := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintln(w, i)
			if r.Header.Get("Accept") == "text/event-stream" {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		})
		addrs = append(addrs, strings.TrimPrefix(edge.URL, "http://"))
	}
	addr, _, _ = startOwnProxy(t, "", manyConnections, addrs...)
	return addr
}

// The proxy of deploy/ sends requests about a partition's sessions to the same edge.
func TestProxy_PartitionsStayTogether(t *testing.T) {
	t.Parallel()
	addr := startEdgesProxy(t, 4)
	of := map[int]string{} // the edge of a partition
	for n := range 100 {
		session := uuid.NewString()
		escaped := n%10 == 0
		if escaped {
			session = fmt.Sprintf("a/b?%d", n)
		}
		requests := map[string][]string{
			"GET /v1/sessions/" + url.PathEscape(session) + "/events":               nil,
			"GET /v1/sessions/" + url.PathEscape(session) + "/streams/a/events":     nil,
			"GET /v1/events?session=" + url.QueryEscape(session) + "&session=other": nil,
			"POST /messages?session=" + url.QueryEscape(session):                    nil,
			"DELETE /mcp": {"Mcp-Session-Id", session},
		}
		if !escaped { // the names of the edge's own sessions are not
			requests["GET /mcp"] = []string{"Last-Event-ID", session + ":x_0000000_1.2"}
			requests["POST /mcp"] = []string{"Mcp-Method", "tasks/get", "Mcp-Name", mcprev.TaskID(session)}
		}
		for request, headers := range requests {
			method, path, _ := strings.Cut(request, " ")
			a := do(t, method, "http://"+addr+path, "", headers...)
			partition := event.Partition(session, 16)
			if of[partition] == "" {
				of[partition] = a.body
			}
			if a.status != http.StatusOK || a.body != of[partition] {
				t.Errorf("%s of %s: %d %q, want edge %s", request, session, a.status, a.body, of[partition])
			}
		}
	}
	if len(of) < 8 {
		t.Errorf("the sessions lie in %d partitions", len(of))
	}
}

// Event streams are spread evenly enough, also where some sessions have most of them.
func TestProxy_EventStreamsAreSpread(t *testing.T) {
	t.Parallel()
	const edges, streams = 4, 200
	addr := startEdgesProxy(t, edges)
	at := map[string]int{}
	for n := range streams {
		s := procAt(t, addr).subscribe(fmt.Sprintf("/v1/sessions/s%d/events", n%7), "")
		at[must.Value(bufio.NewReader(s.resp.Body).ReadString('\n'))(t)]++
	}
	for edge, n := range at {
		if n > streams*3/2/edges+1 {
			t.Errorf("edge %s has %d of %d streams", strings.TrimSpace(edge), n, streams)
		}
	}
}
