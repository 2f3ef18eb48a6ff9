//go:build docker

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	rejoin "rejoin/shared/client"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

var (
	loadRate = flag.Float64("rate", 1000, "how many events a second are published to the cluster")
	restarts = flag.String("restarts", "all", "which containers of the cluster are restarted, one after the other: all, or the first of each kind")
	kills    = flag.Int("kills", 2, "how many containers of the cluster are killed, one after the other")
	killSeed = flag.Uint64("kill-seed", 0, "which ones; 0: at random")
)

// clustered are the services of deploy/compose.cluster.yaml.
var clustered = []string{
	"nats-1", "nats-2", "nats-3", "janitor-1", "janitor-2", "ingest-1", "ingest-2",
	"sse-edge-1", "sse-edge-2", "sse-edge-3", "proxy",
}

func TestDocker_Cluster(t *testing.T) {
	d := deploy(t, "compose.cluster.yaml", "rejoin-e2e-cluster")
	d.url = "https://" + d.addr
	d.up()
	d.is([]claim{
		{"each partition is on three servers, which trust each other alone", d.isReplicated},
		{"eight tabs of a browser stream at once", d.streamsToTabs},
		{"the streams of a session come to two edges", d.sticks},
		{"a restart of each container loses nothing", d.rolls},
		{"the end of any container loses nothing", d.survivesKills},
		{"NATS refused no user", d.wasAllowed},
	})
}

// trust returns a configuration that trusts the proxy's own certificate.
func (d *deployment) trust() *tls.Config {
	d.t.Helper()
	file := filepath.Join(d.t.TempDir(), "tls.pem")
	d.compose("cp", "proxy:/run/tls/tls.pem", file)
	certificate := must.Value(os.ReadFile(file))(d.t)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(certificate) {
		d.t.Fatalf("%s is no certificate", certificate)
	}
	return &tls.Config{RootCAs: pool, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
}

func (d *deployment) isReplicated(t *testing.T) {
	const streams = 20 // 16 partitions, sessions, lease, attach records, calls
	for _, server := range clustered[:3] {
		// A server that only follows a stream may have it a moment later.
		waittest.Until(t, server+" has all streams with three replicas", func() bool {
			streamsOf := d.compose("exec", "-T", server, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/jsz?streams=1&config=1")
			return strings.Count(streamsOf, `"num_replicas": 3`) == streams
		})
		routes := d.compose("exec", "-T", server, "wget", "-q", "-O", "-", "http://127.0.0.1:8222/routez")
		for _, other := range clustered[:3] {
			if has := strings.Contains(routes, `"remote_name": "`+other+`"`); has != (other != server) {
				t.Errorf("%s has routes %s", server, routes)
			}
		}
	}
	d.keepsOut(t)
}

// A server without a key of the cluster does not join it.
func (d *deployment) keepsOut(t *testing.T) {
	stranger := strings.TrimSpace(d.run("docker", "run", "--detach", "--network", d.project+"_nats", "--entrypoint", "/usr/local/bin/nats-server",
		"nats:2.15-alpine", "--name", "stranger", "--cluster_name", "rejoin", "--cluster", "nats://0.0.0.0:6222", "--routes", "nats://nats-1:6222"))
	defer d.run("docker", "rm", "--force", stranger)
	waittest.Until(t, "a stranger is refused", func() bool {
		return strings.Contains(d.compose("logs", "--no-color", "nats-1"), "TLS route handshake error")
	})
	if routes := d.compose("exec", "-T", "nats-1", "wget", "-q", "-O", "-", "http://127.0.0.1:8222/routez"); strings.Contains(routes, "stranger") {
		t.Errorf("a stranger has a route: %s", routes)
	}
}

// A browser has six connections to an origin with HTTP/1.1, and one with HTTP/2.
func (d *deployment) streamsToTabs(t *testing.T) {
	const tabs = 8
	b := openBrowser(t, chromedp.Flag("ignore-certificate-errors", true))
	all := []*browser{b}
	for len(all) < tabs {
		all = append(all, b.newTab())
	}
	for _, tab := range all {
		tab.do(chromedp.Navigate(d.url + "/v1/sessions"))
		tab.listen(streamPath("tabs", "main"))
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: d.trust(), DisableKeepAlives: true}}
	for n := 1; n <= 5; n++ {
		// A cluster that is slow at the moment answers 503, and the message is sent again.
		waittest.Until(t, fmt.Sprintf("message %d is stored", n), func() bool {
			req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+streamPath("tabs", "main"), strings.NewReader(numbered(n))))(t)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", fmt.Sprint(n))
			resp := must.Value(c.Do(req))(t)
			_ = resp.Body.Close()
			if resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusCreated {
				t.Fatal(resp.Status)
			}
			return resp.StatusCode == http.StatusCreated
		})
		for _, tab := range all {
			tab.until(fmt.Sprintf("got.length === %d && got.at(-1) === %d", n, n))
		}
	}
	for i, tab := range all {
		if protocol := script[string](tab, "performance.getEntriesByType('navigation')[0].nextHopProtocol"); protocol != "h2" {
			t.Errorf("tab %d speaks %s", i, protocol)
		}
		if !script[bool](tab, "opened === 1 && failed === 0 && gaps === 0 && es.readyState === EventSource.OPEN") {
			t.Errorf("tab %d has %s", i, script[string](tab, "[opened, failed, gaps, es.readyState].join()"))
		}
	}
}

// edgeConnections returns how many event streams each edge has.
func (d *deployment) edgeConnections() (each []string) {
	d.t.Helper()
	for _, edge := range []string{"sse-edge-1", "sse-edge-2", "sse-edge-3"} {
		each = append(each, d.connections(edge))
	}
	return each
}

// Else each edge would follow the partitions of the others. The proxy gives connections above one and a
// half times the average to the next edge, which with so few is soon.
func (d *deployment) sticks(t *testing.T) {
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: d.trust(), DisableKeepAlives: true}}
	waittest.Until(t, "no client is connected", func() bool { return slices.Equal(d.edgeConnections(), []string{"0", "0", "0"}) })
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	const streams = 6
	for i := range streams {
		path := streamPath("sticky", fmt.Sprint(i))
		if i%2 == 0 {
			path = "/v1/sessions/sticky/events"
		}
		req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, d.url+path, http.NoBody))(t)
		req.Header.Set("Accept", "text/event-stream")
		resp := must.Value(c.Do(req))(t)
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	waittest.Until(t, "two edges have all", func() bool {
		sum, without := 0, 0
		for _, each := range d.edgeConnections() {
			n := must.Value(strconv.Atoi(each))(t)
			if sum += n; n == 0 {
				without++
			}
		}
		return sum == streams && without > 0
	})
}

// healthy waits until a container reports that it is.
func (d *deployment) healthy(service string) {
	d.t.Helper()
	id := d.container(service)
	waittest.Until(d.t, service+" is healthy", func() bool {
		return strings.TrimSpace(d.run("docker", "inspect", "--format", "{{.State.Health.Status}}", id)) == "healthy"
	})
}

// rolls restarts the containers of the cluster as an upgrade does.
func (d *deployment) rolls(t *testing.T) {
	restarted := clustered
	if *restarts == "first" {
		restarted = slices.DeleteFunc(slices.Clone(clustered), func(service string) bool {
			return strings.HasSuffix(service, "-2") || strings.HasSuffix(service, "-3")
		})
	}
	tr, end := d.load("rolling")
	for _, service := range restarted {
		begun := time.Now()
		d.compose("restart", service)
		d.healthy(service)
		tr.flows("a restart of " + service)
		t.Logf("%s was restarted, and everybody had everything, in %s", service, time.Since(begun).Round(100*time.Millisecond))
	}
	end()
}

// load publishes at an even rate to a hundred sessions with ten readers each. end ends it, and expects that each
// reader has everything once and in order.
func (d *deployment) load(name string) (tr *traffic, end func()) {
	d.t.Helper()
	const sessions, readers, waiting = 100, 10, 120_000 // events that a cluster does not take at the moment
	trust := d.trust()
	tr = newTraffic(d.t, rejoin.PublisherConfig{
		URL: d.url, MaxRetry: time.Second, MaxRequests: sessions, AnswerTimeout: 10 * time.Second, MaxBufferedMessages: waiting, MaxBufferedBytes: 1 << 30,
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true}},
	})
	tr.client = &http.Client{Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}} // a connection for each
	ctx, cancel := context.WithCancel(d.t.Context())
	for i := range sessions {
		session := fmt.Sprint(name, "-", i)
		tr.write(ctx, session, "main")
		for range readers {
			tr.read(ctx, d.url, session, "main")
		}
	}
	tr.pace(*loadRate)
	tr.flows("the start")
	return tr, func() {
		d.t.Helper()
		defer cancel()
		tr.end(ctx, d.url)
		tr.compare()
		d.t.Logf("%d events, all of which came to %d readers each, once and in order", tr.stored.Load(), readers)
	}
}

func (d *deployment) survivesKills(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-kill-seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it is to be repeatable
	tr, end := d.load("killed")
	for n := 1; n <= *kills; n++ {
		service := clustered[rng.IntN(len(clustered))]
		id := d.container(service)
		d.run("docker", "kill", "--signal", "KILL", id)
		if service != "proxy" { // there is one, and all clients connect through it
			tr.flows("the end of " + service)
		}
		d.run("docker", "start", id)
		d.healthy(service)
		tr.flows("the return of " + service)
		t.Logf("%d. %s was killed", n, service)
	}
	end()
}

func (d *deployment) wasAllowed(t *testing.T) {
	if logs := d.compose("logs", "--no-color"); strings.Contains(strings.ToLower(logs), "permissions violation") {
		t.Errorf("NATS has refused something:\n%s", logs)
	}
}

// newTab opens another tab of the same browser. It ends with the browser.
func (b *browser) newTab() *browser {
	b.t.Helper()
	ctx, _ := chromedp.NewContext(b.ctx) // ended with b's
	must.NoError(b.t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	return &browser{t: b.t, ctx: ctx}
}

// pace has so many messages a second published until the traffic ends.
func (tr *traffic) pace(rate float64) {
	begun, ticker := time.Now(), time.NewTicker(10*time.Millisecond)
	tr.writing.Go(func() {
		defer ticker.Stop()
		for n := 0.0; ; {
			select {
			case <-tr.stopped:
				return
			case <-tr.t.Context().Done():
				return
			case <-ticker.C:
			}
			for ; n < time.Since(begun).Seconds()*rate && len(tr.allow) < cap(tr.allow); n++ {
				tr.allow <- struct{}{}
			}
		}
	})
}

// flows waits until each reader of a stream has received all messages that are stored now, and one more.
func (tr *traffic) flows(what string) {
	tr.t.Helper()
	want := map[*writer]int64{}
	for _, w := range tr.writers {
		want[w] = w.count.Load() + 1
	}
	waittest.Until(tr.t, "all that is stored, and more, comes after "+what, func() bool {
		if wrong := tr.failures(); len(wrong) > 0 {
			tr.t.Fatalf("after %s: %q", what, wrong)
		}
		for _, w := range tr.writers {
			for _, r := range tr.readers {
				if r.session == w.session && r.stream == w.stream && r.count.Load() < want[w] {
					return false
				}
			}
		}
		return true
	})
}
