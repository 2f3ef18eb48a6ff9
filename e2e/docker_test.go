//go:build docker

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/chromedp/chromedp"
	gocmp "github.com/google/go-cmp/cmp"

	"rejoin/shared/auth/authtest"
	rejoin "rejoin/shared/client"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// deployment is a Compose file of deploy/, run by the Docker engine of this machine from
// the files of a fresh clone of this tree.
type deployment struct {
	t       *testing.T
	file    string
	project string // Docker's name for its containers
	dir     string
	addr    string
	url     string
	env     []string
}

// upWithin bounds the start, once the images are there.
const upWithin = 60 * time.Second

func deploy(t *testing.T, file, project string) *deployment {
	t.Helper()
	ln := must.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	addr := ln.Addr().(*net.TCPAddr) //nolint:errcheck,forcetypeassert // it listens on TCP
	_ = ln.Close()                   // the port is the proxy's from now on
	d := &deployment{t: t, file: "deploy/" + file, project: project, dir: t.TempDir(), addr: addr.String(), url: "http://" + addr.String()}
	d.env = append(withoutRejoin(os.Environ()), "REJOIN_PORT="+strconv.Itoa(addr.Port), "REJOIN_VERSION=e2e", "DOCKER_BUILDKIT=1")
	clone := exec.CommandContext(t.Context(), "bash", "-c", `cd .. && git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- | tar -x -C "$0"`, d.dir)
	if out, err := clone.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.compose("down", "--volumes", "--remove-orphans") // the remains of a run that was killed
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last of the logs:\n%s", d.compose("logs", "--no-color", "--tail=20"))
		}
		d.compose("down", "--volumes", "--remove-orphans")
	})
	d.compose("build")
	return d
}

// run runs a program in the deployment's folder and returns its output.
func (d *deployment) run(name string, args ...string) string {
	d.t.Helper()
	cmd := exec.Command(name, args...) //nolint:noctx // the containers must not be left behind
	cmd.Dir, cmd.Env = d.dir, d.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}

func (d *deployment) compose(args ...string) string {
	d.t.Helper()
	return d.run("docker", append([]string{"compose", "-p", d.project, "-f", d.file}, args...)...)
}

func (d *deployment) up() {
	d.t.Helper()
	begun := time.Now()
	d.compose("up", "--no-build", "--wait", "--wait-timeout", strconv.Itoa(int(upWithin/time.Second)))
	d.t.Logf("healthy after %s", time.Since(begun).Round(100*time.Millisecond))
}

func (d *deployment) container(service string) string {
	d.t.Helper()
	return strings.TrimSpace(d.compose("ps", "--all", "--quiet", service))
}

// has lists the deployment's objects of a kind in Docker: container, network or volume.
func (d *deployment) has(kind string) []string {
	d.t.Helper()
	args := []string{kind, "ls", "--quiet", "--filter", "label=com.docker.compose.project=" + d.project}
	if kind == "container" {
		args = append(args, "--all")
	}
	return strings.Fields(d.run("docker", args...))
}

var deployed = []string{"nats", "janitor", "ingest", "sse-edge", "proxy"}

func TestDocker_OneMachine(t *testing.T) {
	d := deploy(t, "compose.yaml", "rejoin-e2e")
	d.up()
	d.is([]claim{
		{"its containers may do little", d.isHardened},
		{"the proxy answers for an edge that is away", d.speaksForTheEdge},
		{"an edge hears that a client behind the proxy has gone", d.noticesWhoGoes},
		{"attacks on its memory kill no container", d.standsAttacks},
		{"a session of curl continues after down and up", d.outlivesDown},
		{"a restart of each container loses nothing", d.survivesRestarts},
		{"access control is a matter of .env", d.letsIn},
	})
}

// claim is a sentence about a deployment, and its test.
type claim struct {
	name string
	test func(*testing.T)
}

// is runs tests of a deployment, one after the other.
func (d *deployment) is(claims []claim) {
	own := d.t
	defer func() { d.t = own }()
	for _, c := range claims {
		own.Run(c.name, func(t *testing.T) {
			d.t = t
			c.test(t)
		})
	}
}

func (d *deployment) isHardened(t *testing.T) {
	type containerInfo struct {
		Config     struct{ User string }
		HostConfig struct {
			ReadonlyRootfs bool
			Privileged     bool
			CapAdd         []string
			CapDrop        []string
			SecurityOpt    []string
			Memory         int64
			PidsLimit      *int64
			PortBindings   map[string][]struct {
				HostIP string `json:"HostIp"`
			}
		}
		Mounts []struct {
			Name, Destination string
			RW                bool
		}
	}
	published := 0
	holders := map[string][]string{} // of each volume
	for _, service := range append([]string{"credentials"}, deployed...) {
		var infos []containerInfo
		must.NoError(t, json.Unmarshal([]byte(d.run("docker", "inspect", d.container(service))), &infos))
		c := infos[0]
		h := c.HostConfig
		if c.Config.User != "65532:65532" || !h.ReadonlyRootfs || h.Privileged || len(h.CapAdd) > 0 || !slices.Contains(h.CapDrop, "ALL") ||
			!slices.Contains(h.SecurityOpt, "no-new-privileges:true") || h.Memory <= 0 || h.PidsLimit == nil || *h.PidsLimit <= 0 {
			t.Errorf("%s: %+v", service, c)
		}
		for port, hosts := range h.PortBindings {
			for _, host := range hosts {
				published++
				if service != "proxy" || host.HostIP != "127.0.0.1" {
					t.Errorf("%s publishes %s on %s", service, port, host.HostIP)
				}
			}
		}
		for _, m := range c.Mounts {
			if strings.Contains(m.Name, "keys-") && service != "credentials" {
				holders[m.Name] = append(holders[m.Name], service)
				if m.RW {
					t.Errorf("%s may write %s", service, m.Name)
				}
			}
		}
	}
	if published != 1 {
		t.Errorf("%d ports are published", published)
	}
	for volume, services := range holders {
		if len(services) != 1 {
			t.Errorf("%s is seen by %s", volume, services)
		}
	}
	if len(holders) != 4 {
		t.Errorf("the keys are in %v", holders)
	}
}

// An EventSource gives up for good unless it is answered 200.
func (d *deployment) speaksForTheEdge(t *testing.T) {
	d.compose("kill", "sse-edge", "ingest")
	events := d.url + streamPath("errors", "main")
	for name, tt := range map[string]struct {
		method, url, accept string
		status              int
		contentType, body   string
	}{
		"an EventSource":    {http.MethodGet, events, "text/event-stream", http.StatusOK, "text/event-stream", "retry: 3000\n:\n:\n\n"},
		"an SDK's GET":      {http.MethodGet, d.url + "/mcp", "application/json, text/event-stream", http.StatusOK, "text/event-stream", "retry: 3000\n:\n:\n\n"},
		"a call":            {http.MethodPost, d.url + "/mcp", "application/json, text/event-stream", http.StatusServiceUnavailable, "application/problem+json", `"code":"unavailable"`},
		"a poll":            {http.MethodGet, events, "application/json", http.StatusServiceUnavailable, "application/problem+json", `"code":"unavailable"`},
		"a publisher":       {http.MethodPost, events, "", http.StatusServiceUnavailable, "application/problem+json", `"code":"unavailable"`},
		"one of another":    {http.MethodGet, d.url + "/v1/sessions", "", http.StatusOK, "application/json", `"sessions"`},
		"one of the sweeps": {http.MethodPost, d.url + "/v1/sweep", "", http.StatusForbidden, "application/problem+json", `"code":"origin_not_allowed"`}, // the janitor refuses it
	} {
		a := do(t, tt.method, tt.url, "", "Accept", tt.accept, "Origin", "https://page.example")
		if a.status != tt.status || a.header.Get("Content-Type") != tt.contentType || !strings.Contains(a.body, tt.body) || a.header.Get("Rejoin-Proxy") != "" {
			t.Errorf("%s: %d %v %q", name, a.status, a.header, a.body)
		}
		if open := a.header.Get("Access-Control-Allow-Origin") != ""; open != (tt.contentType == "text/event-stream") {
			t.Errorf("%s: pages of other origins may read it: %t", name, open)
		}
	}
	d.up()
	d.isReached()
}

// isReached waits until the proxy forwards the requests for each service: it checks the
// services itself, and may find one later than Docker does.
func (d *deployment) isReached() {
	d.t.Helper()
	waittest.Until(d.t, "the proxy reaches every service", func() bool {
		for _, ask := range [][2]string{
			{http.MethodGet, "/v1/sessions"},
			{http.MethodPost, streamPath("reached", "main")}, // without a message: it is refused
			{http.MethodGet, streamPath("reached", "main")},
		} {
			a, err := try(ask[0], d.url+ask[1], "", "Accept", "application/json")
			if err != nil || a.status >= http.StatusInternalServerError {
				return false
			}
		}
		return true
	})
}

// Else its connection would be counted until a time-out of the proxy, 45 s later.
func (d *deployment) noticesWhoGoes(t *testing.T) {
	connections := func() string { return d.connections("sse-edge") }
	s := procAt(t, d.url).subscribe(streamPath("leaving", "main"), "")
	waittest.Until(t, "the edge has a connection", func() bool { return connections() == "1" })
	s.cut()
	left := time.Now()
	waittest.Value(t, "the edge has no connection", connections, func(n string) bool { return n == "0" })
	if took := time.Since(left); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// connections returns how many event streams an edge has.
func (d *deployment) connections(edge string) string {
	d.t.Helper()
	metrics := d.compose("exec", "-T", "proxy", "wget", "-q", "-O", "-", "http://"+edge+":9080/metrics")
	_, rest, _ := strings.Cut(metrics, "\nrejoin_edge_connections ")
	number, _, _ := strings.Cut(rest, "\n")
	return number
}

// standsAttacks makes the attacks of attack_memory_test.go on the containers themselves, whose
// memory is limited.
func (d *deployment) standsAttacks(t *testing.T) {
	states := func() (all []string) {
		for _, service := range deployed {
			all = append(all, service+" "+d.run("docker", "inspect", "--format={{.State.StartedAt}} {{.State.OOMKilled}} {{.RestartCount}}", d.container(service)))
		}
		return all
	}
	before := states()
	url := d.url + streamPath("attacked", "main")
	publish := func(size int) {
		message := fmt.Sprintf(`{"jsonrpc":"2.0","method":"n","params":[%q]}`, strings.Repeat("x", size))
		if a := do(t, http.MethodPost, url, message, "Content-Type", jsonType); a.status != http.StatusCreated {
			t.Errorf("a healthy publisher is answered %d %.300s", a.status, a.body)
		}
	}
	for range 9 {
		publish(1e6)
	}
	var all sync.WaitGroup
	attack := func(service, port string, n int, head string, body func() io.Reader) {
		ip := strings.TrimSpace(d.run("docker", "inspect", `--format={{(index .NetworkSettings.Networks "`+d.project+`_http").IPAddress}}`, d.container(service)))
		for range n {
			conn := webtest.Dial(t, net.JoinHostPort(ip, port), head)
			all.Go(func() {
				_, _ = io.Copy(conn, body()) // a refused client may be cut off in the middle of its body
			})
		}
	}
	nothing := func() io.Reader { return strings.NewReader("") }
	attack("sse-edge", "8080", 300, "GET "+streamPath("attacked", "main")+"?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n", nothing)
	post := "POST " + streamPath("attacked", "other") + "%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
	attack("ingest", "8081", 20, fmt.Sprintf(post, "?results=each", "application/x-ndjson", 1_200_000),
		func() io.Reader { return strings.NewReader(strings.Repeat("x\n", 600_000)) })
	attack("ingest", "8081", 8, fmt.Sprintf(post, "", "application/vnd.rejoin.messages+json", 4<<20-1),
		func() io.Reader { return strings.NewReader("[" + strings.Repeat("0,", 2<<20-2) + "0]") })
	session := `{"metadata":{"x":"` + strings.Repeat("x", 16<<10-8) + `"}}`
	for range 4 {
		all.Go(func() {
			for range 500 {
				_, _ = try(http.MethodPost, d.url+"/v1/sessions", session, "Content-Type", jsonType) // it may be refused
			}
		})
	}
	for range 50 {
		publish(10)
	}
	all.Wait()
	publish(10)
	t.Logf("what they use behind that:\n%s", d.run("docker", "stats", "--no-stream", "--format={{.Name}} {{.MemUsage}}"))
	if diff := gocmp.Diff(before, states()); diff != "" {
		t.Errorf("containers have ended: %s", diff)
	}
}

// curlSession is the README's.
const curlSession = `
url=$1/v1/sessions/demo/streams/main/events
publish() { curl -sS --fail-with-body "$url" -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","method":"count","params":{"n":'"$1"'}}'; echo; }
`

func (d *deployment) outlivesDown(t *testing.T) {
	bash := func(script string, args ...string) string {
		t.Helper()
		return d.run("bash", append([]string{"-euc", curlSession + script, "bash", d.url}, args...)...)
	}
	first := bash(`publish 1; publish 2; publish 3; timeout 10 curl -sN "$url" || true`)
	ids := idsIn(first)
	if len(ids) != 4 || !strings.Contains(first, `"n":3`) {
		t.Fatalf("the first visit: %s", first)
	}
	volumes := d.has("volume")
	d.compose("down")
	if left := slices.Concat(d.has("container"), d.has("network")); len(left) > 0 {
		t.Errorf("down leaves %s", left)
	}
	if left := d.has("volume"); !slices.Equal(left, volumes) || len(left) != 7 { // the log, and the keys of six
		t.Errorf("the volumes were %s and are %s", volumes, left)
	}
	d.up()
	second := bash(`publish 4 >&2; publish 5 >&2; timeout 10 curl -sN "$url" -H "Last-Event-ID: $2" || true`, ids[3])
	if again := idsIn(second); len(again) != 3 || !strings.Contains(second, `"resumed":true`) || strings.Contains(second, `"n":3`) ||
		!strings.Contains(second, `"n":4`) || !strings.Contains(second, `"n":5`) {
		t.Errorf("the second visit: %s", second)
	}
}

// idsIn returns the event IDs of a transcript, in order. A heartbeat has the ID of the
// event before it.
func idsIn(transcript string) (ids []string) {
	for line := range strings.Lines(transcript) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			ids = append(ids, strings.TrimSpace(id))
		}
	}
	return slices.Compact(ids)
}

// An EventSource and a Go client receive each acknowledged event once and in order, while
// each container is stopped in order, and killed.
func (d *deployment) survivesRestarts(t *testing.T) {
	b := openBrowser(t)
	b.do(chromedp.Navigate(d.url + "/v1/sessions"))
	b.listen(streamPath("restarts", "main"))
	tr := newTraffic(t, rejoin.PublisherConfig{URL: d.url, MaxRetry: time.Second})
	tr.write(t.Context(), "restarts", "main")
	tr.read(t.Context(), d.url, "restarts", "main")
	tr.pace(20) // so that none is trimmed
	flows := func(what string) {
		t.Helper()
		n := tr.stored.Load() + 20
		waittest.Until(t, "messages are stored after "+what, func() bool { return tr.stored.Load() >= n })
		waittest.Until(t, "they come to the browser after "+what, func() bool { return script[int64](b, "got.length") >= n })
		tr.flows(what)
	}
	flows("the start")
	for _, service := range deployed {
		d.compose("restart", service)
		flows("a restart of " + service)
		id := d.container(service)
		d.run("docker", "kill", id)
		d.run("docker", "start", id)
		flows("the end of " + service)
	}
	tr.end(t.Context(), d.url)
	tr.compare()
	n := tr.stored.Load()
	waittest.Until(t, "all have come to the browser", func() bool { return script[int64](b, "got.length") >= n })
	if !script[bool](b, fmt.Sprintf("gaps === 0 && got.length === %d && got.every((n, i) => n === i)", n)) {
		t.Errorf("the browser has %s gaps and %v", script[string](b, "String(gaps)"), script[string](b, "String(got.filter((n, i) => n !== i).slice(0, 20))"))
	}
	d.wasAllowed(t)
	t.Logf("%d messages, %d connections of the browser", n, script[int](b, "opened"))
}

func (d *deployment) letsIn(t *testing.T) {
	env := "REJOIN_AUTH=jwt\nREJOIN_INSECURE=false\nREJOIN_JWT_AUDIENCE=" + authtest.Audience + "\nREJOIN_JWT_SECRET=" + strconv.Quote(authtest.Secret) + "\n"
	must.NoError(t, os.WriteFile(filepath.Join(d.dir, "deploy", ".env"), []byte(env), 0o600))
	d.up()
	d.isReached()
	bearer := []string{"Authorization", "Bearer " + authtest.Of(t, "somebody", "mine*"), "Content-Type", "application/json"}
	for _, tt := range []struct {
		method, path, body string
		with               []string
		status             int
	}{
		{http.MethodPost, "/v1/sessions", `{"session":"mine"}`, bearer[2:], http.StatusUnauthorized},
		{http.MethodPost, "/v1/sessions", `{"session":"mine"}`, bearer, http.StatusCreated},
		{http.MethodPost, streamPath("mine", "main"), numbered(1), bearer[2:], http.StatusUnauthorized},
		{http.MethodPost, streamPath("mine", "main"), numbered(1), bearer, http.StatusCreated},
		{http.MethodGet, streamPath("mine", "main"), "", []string{"Accept", "application/json"}, http.StatusUnauthorized},
		{http.MethodGet, streamPath("mine", "main"), "", append(bearer, "Accept", "application/json"), http.StatusOK},
		{http.MethodGet, streamPath("other", "main"), "", append(bearer, "Accept", "application/json"), http.StatusForbidden},
		{http.MethodGet, "/v1/sessions", "", nil, http.StatusUnauthorized},
	} {
		if a := do(t, tt.method, d.url+tt.path, tt.body, tt.with...); a.status != tt.status {
			t.Errorf("%s %s: %d %s, want %d", tt.method, tt.path, a.status, a.body, tt.status)
		}
	}
}

func TestDocker_DocumentedCombinations(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{
		{"compose.yaml"},
		{"compose.yaml", "compose.nats.yaml"},
		{"compose.yaml", "observability/compose.yaml"},
		{"compose.cluster.yaml"},
		{"compose.cluster.yaml", "compose.machines.yaml"},
		{"compose.cluster.yaml", "observability/compose.yaml"},
	} {
		args := []string{"compose"}
		for _, file := range files {
			args = append(args, "-f", "../deploy/"+file)
		}
		for _, auth := range []string{"", "jwt"} {
			cmd := exec.CommandContext(t.Context(), "docker", append(args, "config", "--quiet")...)
			cmd.Env = append(os.Environ(), "REJOIN_AUTH="+auth)
			out, err := cmd.CombinedOutput()
			// A deployment that other machines reach needs access control.
			if ok := auth != "" || !slices.Contains(files, "compose.machines.yaml"); ok != (err == nil) {
				t.Errorf("%v with REJOIN_AUTH=%s: %v\n%s", files, auth, err, out)
			}
		}
	}
}

// A log's number of partitions is a matter of .env: the janitor makes as many, and the proxy sends the
// clients of each to one edge.
func TestDocker_PartitionsReachJanitorAndProxy(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{"compose.yaml": 2, "compose.cluster.yaml": 3} { // janitors and proxy
		cmd := exec.CommandContext(t.Context(), "docker", "compose", "-f", "../deploy/"+file, "config")
		cmd.Env = append(withoutRejoin(os.Environ()), "REJOIN_PARTITIONS=4")
		out, err := cmd.CombinedOutput()
		if got := strings.Count(string(out), `PARTITIONS: "4"`); err != nil || got != want {
			t.Errorf("%s: %v, %d variables have the number, want %d", file, err, got, want)
		}
	}
}

// listenJS opens an EventSource and records its events.
const listenJS = `(() => {
	window.got = []; window.gaps = 0; window.opened = 0; window.failed = 0
	window.es = new EventSource(%q)
	es.onmessage = (e) => got.push(JSON.parse(e.data).params.n)
	es.addEventListener('gap', () => gaps++)
	es.onopen = () => opened++
	es.onerror = () => failed++
	return true
})()`

func (b *browser) listen(path string) {
	b.t.Helper()
	script[bool](b, fmt.Sprintf(listenJS, path))
	b.until("opened > 0")
}
