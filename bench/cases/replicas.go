package cases

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// replicas measures Rejoin's services with a log on one NATS server, and on three, on the same
// machine: the cost of a cluster, where it has three times as many cores.
func replicas(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for _, of := range []struct{ prefix, kind string }{{"r1_", system.BareNATS}, {"r3_", system.BareCluster}} {
		if err := replicated(ctx, &f, p, of.prefix, of.kind); err != nil {
			return f, fmt.Errorf("%s: %w", of.kind, err)
		}
	}
	for _, metric := range []string{"per_s", "ndjson_per_s", "free_deliveries_per_s", "paced_p99_ms", "resume_s"} {
		f.Ratio(metric+"_vs_r1", "r3_"+metric, "r1_"+metric)
	}
	return f, nil
}

// services are an edge, and a log that is published to straight.
type services struct {
	*load.LogPublisher
	edge *system.Program
	all  []int
}

func (s *services) PIDs() []int { return s.all }

func replicated(ctx context.Context, f *measure.Figures, p *system.Programs, prefix, kind string) error {
	log, err := system.StartBareLog(ctx, p, kind, "")
	if err != nil {
		return err
	}
	defer log.Close()
	j, err := system.StartJanitor(ctx, p, log.URL)
	if err != nil {
		return err
	}
	defer j.Stop()
	in, err := system.StartIngest(ctx, p, log.URL)
	if err != nil {
		return err
	}
	defer in.Stop()
	e, err := system.StartEdge(ctx, p, log.URL)
	if err != nil {
		return err
	}
	defer e.Stop()
	s := &services{log.LogPublisher, e, append(log.PIDs(), e.PID())}
	// First, since ingest creates the session that is published to straight.
	if err := fanoutReplicated(ctx, f, prefix, s); err != nil {
		return err
	}
	rate, err := publishRate(ctx, in.Ingest)
	if err != nil {
		return err
	}
	f.Add(prefix+"per_s", rate)
	if rate, err = ndjsonRate(ctx, in.Ingest); err != nil {
		return err
	}
	f.Add(prefix+"ndjson_per_s", rate)
	acks := make([]jetstream.PubAckFuture, system.StoredStreams)
	for n := range 4 {
		for i := range system.StoredStreams {
			ack, err := s.Store(ctx, &nats.Msg{Subject: load.SubjectOf(i + resumedFrom), Data: load.Varied(n, i)})
			if err != nil {
				return err
			}
			if n == 1 {
				acks[i] = ack
			}
		}
	}
	if err := s.Flush(ctx); err != nil {
		return err
	}
	cursors, err := load.CursorsOf(ctx, s.Conn, acks, resumedFrom)
	if err != nil {
		return err
	}
	t := s.edge.Target()
	t.Path = func(i int) string { return load.EventsPath(i + resumedFrom) }
	took, err := resumed(ctx, t, 2, 2, func(i int) string { return cursors[i] })
	f.Add(prefix+"resume_s", took.Seconds())
	return err
}

// resumedFrom is the first of the streams that are resumed, which nothing else was published to.
const resumedFrom = 10_000

func fanoutReplicated(ctx context.Context, f *measure.Figures, prefix string, s *services) error {
	const clients = 1000
	l, err := load.New(ctx, load.Crowd{Clients: clients, Target: s.edge.Target()})
	if err != nil {
		return err
	}
	r := &load.Runner{Server: s, Load: l, Streams: 1, Clients: clients}
	err = fanOut(ctx, r, f, prefix)
	f.AddHistogram(prefix+"paced_", l.Close())
	return err
}
