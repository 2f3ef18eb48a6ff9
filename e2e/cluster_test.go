package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	rejoin "rejoin/shared/client"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

var clusterKills = flag.Int("cluster-kills", 2, "how many NATS servers are killed in the test of a cluster")

// Each acknowledged event is in the log once and in order, and each subscriber receives
// it once, though one server of three after the other is killed.
func TestGoClient_ClusterServersAreKilled(t *testing.T) {
	t.Parallel()
	const streams = 8
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	cluster := newNATSCluster(t)
	none := "-1"
	var janitors []*program
	for range 2 {
		janitors = append(janitors, startService(t, "janitor", cluster.flag(), "--replicas=3", "--max-bytes=1073741824",
			"--max-events-per-stream="+none, "--max-events-per-session="+none, "--max-bytes-per-session="+none))
	}
	ingest := startService(t, "ingest", cluster.flag()).url
	edges := make([]string, 2)
	for i := range edges {
		edges[i] = startService(t, "sse-edge", cluster.flag()).url
	}
	cluster.waitCurrent()
	cluster.waitKnown()
	// A log that was made before all servers answered has begun one.
	generations := func() (n int) {
		for _, j := range janitors {
			n += strings.Count(j.log.String(), "generations begun")
		}
		return n
	}
	begun := generations()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Timeout+time.Duration(*clusterKills)*time.Minute)
	defer cancel()
	tr := newTraffic(t, rejoin.PublisherConfig{URL: ingest, MaxBatchMessages: 20, MaxBufferedMessages: 600, MaxRetry: 500 * time.Millisecond})
	for i := range streams {
		tr.write(ctx, "outage", fmt.Sprint(i))
		for _, edge := range edges {
			tr.read(ctx, edge, "outage", fmt.Sprint(i))
		}
	}
	tr.more(ctx, 500)
	for range *clusterKills {
		n := cluster.servers[rnd.IntN(len(cluster.servers))]
		lives := cluster.lives()
		n.kill()
		tr.more(ctx, 500)
		n.start()
		cluster.waitNoted(lives)
		tr.more(ctx, 200)
	}
	tr.end(ctx, ingest)
	tr.compare()
	if generations() > begun {
		t.Error("a generation was begun, though never more than one server was away")
	}
	t.Logf("%d messages stored while %d servers were killed", tr.stored.Load(), *clusterKills)
}

// natsCluster is three NATS servers in processes of their own.
type natsCluster struct {
	t       *testing.T
	servers []*natsProc
}

func newNATSCluster(t *testing.T) *natsCluster {
	t.Helper()
	c := &natsCluster{t: t}
	routes := make([]string, 3)
	for i := range routes {
		routes[i] = fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t))
	}
	for i := range routes {
		n := newNATS(t, clusterOf(i, routes))
		n.start()
		c.servers = append(c.servers, n)
	}
	return c
}

// clusterOf returns the cluster part of a server's configuration.
func clusterOf(i int, routes []string) string {
	return fmt.Sprintf("server_name: n%d\ncluster { name: c, listen: %q, routes: [\"nats://%s\"] }\n", i, routes[i], strings.Join(routes, `", "nats://`))
}

func (c *natsCluster) urls() string {
	urls := make([]string, len(c.servers))
	for i, n := range c.servers {
		urls[i] = "nats://" + n.addr
	}
	return strings.Join(urls, ",")
}

func (c *natsCluster) flag() string { return "--nats-url=" + c.urls() }

// lives returns, for each partition, the janitor's note of the servers.
func (c *natsCluster) lives() []string {
	c.t.Helper()
	nc := must.Value(nats.Connect(c.urls()))(c.t)
	defer nc.Close()
	js := natstest.JetStream(c.t, nc)
	lives := make([]string, partitions)
	for p := range lives {
		waittest.Until(c.t, "the partition's settings can be read", func() bool {
			stream, err := js.Stream(c.t.Context(), fmt.Sprintf("MCP_%d", p))
			if err == nil {
				lives[p] = stream.CachedInfo().Config.Metadata["rejoin.servers"]
			}
			return err == nil
		})
	}
	return lives
}

// waitKnown waits until the janitor has written down all servers in each partition.
func (c *natsCluster) waitKnown() {
	c.t.Helper()
	waittest.Until(c.t, "the janitor has written down all servers", func() bool {
		for _, known := range c.lives() {
			for i := range c.servers {
				if !strings.Contains(known, fmt.Sprintf(`"n%d":`, i)) {
					return false
				}
			}
		}
		return true
	})
}

// waitNoted waits until the janitor has written down the start of a server in each partition: servers that
// are killed before count as ones that a power cut has ended. The lives are those before.
func (c *natsCluster) waitNoted(before []string) {
	c.t.Helper()
	c.waitCurrent()
	waittest.Until(c.t, "the janitor has written down the server's new life", func() bool {
		for p, now := range c.lives() {
			if now == before[p] {
				return false
			}
		}
		return true
	})
}

// waitCurrent waits until all streams have a leader and all their replicas.
func (c *natsCluster) waitCurrent() {
	c.t.Helper()
	nc := must.Value(nats.Connect(c.urls()))(c.t)
	defer nc.Close()
	waittest.Until(c.t, "the cluster is current", func() bool { return natstest.Behind(c.t.Context(), nc) == nil })
}
