package system

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/shared/backend"
	"rejoin/shared/eventlog"
)

// The arguments that make this program serve a log: BareJetStream reads it as well; BareNATS does
// nothing else; BareCluster has it on three servers.
const (
	BareJetStream = "jetstream"
	BareNATS      = "nats"
	BareCluster   = "nats-cluster"
)

// natsServers starts NATS servers, each with a store in a folder.
func natsServers(dir string, n int) ([]*natsserver.Server, error) {
	var routes []*url.URL
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
		if err != nil {
			return nil, err
		}
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		_ = l.Close()
	}
	var all []*natsserver.Server
	for i, route := range routes {
		opts := &natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: filepath.Join(dir, strconv.Itoa(i)), ServerName: "bench-" + strconv.Itoa(i)}
		if n > 1 {
			port, err := strconv.Atoi(route.Port())
			if err != nil {
				return nil, err
			}
			opts.Cluster, opts.Routes = natsserver.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: port}, routes
		}
		s, err := natsserver.NewServer(opts)
		if err != nil {
			return nil, err
		}
		s.Start()
		all = append(all, s)
	}
	for _, s := range all {
		if !s.ReadyForConnections(readyWithin) {
			return nil, errors.New("a server does not get ready")
		}
	}
	return all, nil
}

// serveJetStream serves the parts that Rejoin cannot do without: NATS servers with a log in a
// folder, and, as BareJetStream, one ordered consumer for each partition inside the process, which
// throws away its messages. The first line that it prints is the servers' URLs. It returns only
// errors.
func serveJetStream(kind, dir string) error {
	n := 1
	if kind == BareCluster {
		n = 3
	}
	servers, err := natsServers(dir, n)
	if err != nil {
		return err
	}
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.ClientURL())
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	all := strings.Join(urls, ",")
	b, err := backend.Create(ctx, backend.Config{NATSURL: all}, "bench", eventlog.Settings{Partitions: load.Partitions, Replicas: n, MaxBytes: 8 << 30}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	b.Close()
	if kind == BareJetStream {
		if err := readAll(ctx, servers[0]); err != nil {
			return err
		}
	}
	fmt.Println(all)
	select {} // until it is ended
}

// readAll reads each partition with an ordered consumer inside the server's process.
func readAll(ctx context.Context, s *natsserver.Server) error {
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for p := range load.Partitions {
		consumer, err := js.OrderedConsumer(ctx, "MCP_"+strconv.Itoa(p), jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		if _, err := consumer.Consume(func(jetstream.Msg) {}); err != nil {
			return err
		}
	}
	return nil
}

// StartBareLog starts JetStream alone in a process of its own, with a log. kind is
// BareJetStream, BareNATS or BareCluster. data is the data folder of a standalone program that has
// ended, whose log it is; empty: a new one.
func StartBareLog(ctx context.Context, p *Programs, kind, data string) (*BareLog, error) {
	dir, err := os.MkdirTemp(p.dir, "jetstream-")
	if err != nil {
		return nil, err
	}
	if data != "" {
		if err := os.Symlink(data, filepath.Join(dir, "0")); err != nil {
			return nil, err
		}
	}
	cmd, url, err := StartSelf(ctx, kind, dir)
	if err != nil {
		return nil, errors.Join(errors.New("JetStream alone did not start"), err)
	}
	publisher, err := load.NewLogPublisher(url)
	if err != nil {
		End(cmd)
		return nil, err
	}
	return &BareLog{publisher, cmd, url}, nil
}

// BareLog is JetStream alone, in a process of its own.
type BareLog struct {
	*load.LogPublisher
	cmd *exec.Cmd
	URL string
}

// Close ends it.
func (b *BareLog) Close() {
	b.Conn.Close()
	End(b.cmd)
}

// PIDs is its process.
func (b *BareLog) PIDs() []int { return []int{b.cmd.Process.Pid} }
