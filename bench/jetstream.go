package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/backend"
	"rejoin/shared/eventlog"
)

// bareJetStream is the argument that makes this program serve a log and read it, bareNATS the one
// that makes it serve a log and nothing else.
const (
	bareJetStream = "jetstream"
	bareNATS      = "nats"
)

// serveJetStream serves what Rejoin cannot do without: a NATS server with a log in a
// folder, and, if it reads, one ordered consumer for each partition inside the process, which
// throws away what it gets. The first line that it prints is the server's URL. It returns
// only errors.
func serveJetStream(dir string, reads bool) error {
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: dir})
	if err != nil {
		return err
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(readyWithin) {
		return errors.New("the server does not get ready")
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return err
	}
	b, err := backend.Create(ctx, backend.Config{NATSURL: s.ClientURL()}, "bench", eventlog.Settings{Partitions: partitions, MaxBytes: 1 << 30}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	b.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for p := range partitions {
		if !reads {
			break
		}
		consumer, err := js.OrderedConsumer(ctx, "MCP_"+strconv.Itoa(p), jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		if _, err := consumer.Consume(func(jetstream.Msg) {}); err != nil {
			return err
		}
	}
	fmt.Println(s.ClientURL())
	select {} // until it is ended
}

// jetStreamCPU returns the CPU microseconds that JetStream alone takes for an event.
func jetStreamCPU(ctx context.Context, p *programs, streams, perSecond int, warmUp, d time.Duration) (micros float64, err error) {
	log, err := startBareLog(ctx, p, bareJetStream)
	if err != nil {
		return 0, err
	}
	defer log.end()
	r := &runner{server: log, streams: streams, clients: 1}
	if _, err := r.paced(ctx, perSecond, warmUp); err != nil {
		return 0, err
	}
	return r.paced(ctx, perSecond, d)
}

// startBareLog starts JetStream alone in a process of its own, with a log. kind is bareJetStream or
// bareNATS.
func startBareLog(ctx context.Context, p *programs, kind string) (*bareLog, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.dir, "jetstream-")
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, self, kind, dir)
	cmd.Stderr = os.Stderr
	url, err := begin(cmd)
	if err != nil {
		return nil, errors.Join(errors.New("JetStream alone did not start"), err)
	}
	publisher, err := newLogPublisher(url)
	if err != nil {
		end(cmd)
		return nil, err
	}
	return &bareLog{publisher, cmd, url}, nil
}

// bareLog is JetStream alone, in a process of its own. It has no clients.
type bareLog struct {
	*logPublisher
	cmd *exec.Cmd
	url string
}

func (b *bareLog) end() {
	b.nc.Close()
	end(b.cmd)
}

func (b *bareLog) target() target { return target{} }
func (b *bareLog) pids() []int    { return []int{b.cmd.Process.Pid} }
func (b *bareLog) close()         {}

// begin starts a server of this program, and returns the address that it prints.
func begin(cmd *exec.Cmd) (addr string, err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end(cmd)
	}
	return strings.TrimSpace(line), err
}
