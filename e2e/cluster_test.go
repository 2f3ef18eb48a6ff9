package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	rejoin "rejoin/shared/client"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

var clusterKills = flag.Int("cluster-kills", 2, "how many NATS servers are killed in the test of a cluster")

// What a publisher was told to be stored is in the log once and in order, and comes to
// each subscriber once, though one server of three after the other is killed.
func TestGoClient_ClusterServersAreKilled(t *testing.T) {
	t.Parallel()
	const streams, partitions = 8, 4
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	cluster := newNATSCluster(t)
	none := "-1"
	var janitors []*program
	for range 2 {
		janitors = append(janitors, startProgram(t, "rejoin/services/janitor/cmd/janitor", "janitor listens", "--janitor-addr=127.0.0.1:0", cluster.flag(),
			fmt.Sprintf("--partitions=%d", partitions), "--replicas=3", "--max-bytes=1073741824",
			"--max-events-per-stream="+none, "--max-events-per-session="+none, "--max-bytes-per-session="+none))
	}
	ingest := startService(t, "rejoin/services/ingest/cmd/ingest", "ingest listens", "--ingest-addr=127.0.0.1:0", cluster.flag())
	edges := make([]string, 2)
	for i := range edges {
		edges[i] = startService(t, "rejoin/services/sse-edge/cmd/sse-edge", "edge open", "--edge-addr=127.0.0.1:0", "--drain=0s", cluster.flag())
	}
	cluster.waitCurrent()
	cluster.waitKnown(partitions)
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
		lives := cluster.lives(partitions)
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
		c.servers = append(c.servers, newNATS(t))
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", natstest.FreePort(t))
	}
	for i, n := range c.servers {
		text := fmt.Sprintf("server_name: n%d\nlisten: %q\nmax_payload: 2MB\n%scluster { name: c, listen: %q, routes: [%s] }\n",
			i, n.addr, jetStreamIn(filepath.Join(t.TempDir(), "store")), strings.TrimPrefix(routes[i], "nats://"), `"`+strings.Join(routes, `", "`)+`"`)
		if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.servers {
		n.start()
	}
	return c
}

func (c *natsCluster) urls() string {
	urls := make([]string, len(c.servers))
	for i, n := range c.servers {
		urls[i] = "nats://" + n.addr
	}
	return strings.Join(urls, ",")
}

func (c *natsCluster) flag() string { return "--nats-url=" + c.urls() }

// lives returns, for each partition, what the janitor has written down of the servers.
func (c *natsCluster) lives(partitions int) []string {
	c.t.Helper()
	nc, err := nats.Connect(c.urls())
	if err != nil {
		c.t.Fatal(err)
	}
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
func (c *natsCluster) waitKnown(partitions int) {
	c.t.Helper()
	waittest.Until(c.t, "the janitor has written down all servers", func() bool {
		for _, known := range c.lives(partitions) {
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
		for p, now := range c.lives(len(before)) {
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
	nc, err := nats.Connect(c.urls())
	if err != nil {
		c.t.Fatal(err)
	}
	defer nc.Close()
	waittest.Until(c.t, "the cluster is current", func() bool { return natstest.Behind(c.t.Context(), nc) == nil })
}
