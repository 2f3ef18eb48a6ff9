package natstest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// Cluster is a cluster of three NATS servers with JetStream.
type Cluster struct {
	// Servers can each be stopped, and started again on the same ports and store.
	Servers []*Server

	t testing.TB
}

// StartCluster runs three servers that route to each other over the loopback interface,
// each with a store of its own, and waits until JetStream can hold a stream on all of
// them. They end with the test.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	routes := []int{FreePort(t), FreePort(t), FreePort(t)}
	for i, port := range routes {
		dir := t.TempDir()
		s := &Server{t: t, dir: dir, opt: options(dir)}
		s.opt.ServerName = fmt.Sprintf("natstest-%d", i)
		s.opt.Cluster = server.ClusterOpts{Name: "natstest", Host: "127.0.0.1", Port: port, WriteDeadline: server.DEFAULT_FLUSH_DEADLINE}
		for _, to := range routes {
			s.opt.Routes = append(s.opt.Routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", to)})
		}
		c.Servers = append(c.Servers, s)
		s.Start()
		t.Cleanup(s.Stop)
	}
	c.WaitCurrent()
	return c
}

// URL is the address for clients: all servers, also those that are stopped.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		urls[i] = fmt.Sprintf("nats://127.0.0.1:%d", s.opt.Port)
	}
	return strings.Join(urls, ",")
}

// Named returns the server with a name, such as JetStream reports for the leader of a stream.
func (c *Cluster) Named(name string) *Server {
	c.t.Helper()
	for _, s := range c.Servers {
		if s.opt.ServerName == name {
			return s
		}
	}
	c.t.Fatalf("there is no server %q", name)
	return nil
}

// WaitCurrent waits until all servers run and have all stored entries.
func (c *Cluster) WaitCurrent() {
	c.t.Helper()
	nc := must.Value(nats.Connect(c.URL(), nats.Timeout(30*time.Second)))(c.t)
	defer nc.Close()
	waittest.NoError(c.t, func() error { return c.behind(c.t.Context(), nc) })
}

func (c *Cluster) behind(ctx context.Context, nc *nats.Conn) error {
	leaders := 0
	for _, s := range c.Servers {
		switch {
		case s.srv == nil:
			return fmt.Errorf("%s is stopped", s.opt.ServerName)
		case s.srv.JetStreamIsLeader():
			leaders++
			if peers := len(s.srv.JetStreamClusterPeers()); peers != len(c.Servers) {
				return fmt.Errorf("%d servers", peers)
			}
		}
	}
	if leaders != 1 {
		return fmt.Errorf("%d leaders", leaders)
	}
	return Behind(ctx, nc)
}

// WaitHeard waits until the server of a connection knows the stream that stores the messages
// of a subject: in a cluster it hears of a new stream a moment after its creator. Nothing is
// stored, since no server knows the rollup that is asked for.
func WaitHeard(t testing.TB, nc *nats.Conn, subject string) {
	t.Helper()
	probe := nats.NewMsg(subject)
	probe.Header.Set(jetstream.MsgRollup, "none")
	waittest.NoError(t, func() error {
		_, err := nc.RequestMsgWithContext(waittest.Context(t), probe)
		return err
	}, nats.ErrNoResponders)
}

// behindWithin bounds one look at the streams, which those without a leader do not answer.
const behindWithin = time.Second

// Behind returns which of the streams that a connection can see has no leader, or a
// replica that is not current; nil when there is none.
func Behind(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, behindWithin)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		info := stream.CachedInfo()
		if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != info.Config.Replicas-1 {
			return fmt.Errorf("%s has no leader, or not all replicas", name)
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Offline || r.Lag > 0 {
				return fmt.Errorf("%s is not current on %s", name, r.Name)
			}
		}
	}
	return names.Err()
}
