package cases

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	"rejoin/shared/event"
)

const (
	latencyClients   = 100
	latencyPerSecond = 200
	latencyTime      = 5 * time.Second
)

// latency measures the time from just before a publish to the client that has the
// event, through Rejoin, through a raw broadcaster, and through JetStream alone.
func latency(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r, err := system.StartRejoin(ctx, p, "")
	if err != nil {
		return f, err
	}
	defer r.Close()
	raw, err := system.StartRaw(ctx, system.RawEach)
	if err != nil {
		return f, err
	}
	defer raw.Close()
	if err := latencyOf(ctx, &f, system.OfRejoin, posted{r}); err != nil {
		return f, err
	}
	if err := latencyOf(ctx, &f, system.OfRaw, raw); err != nil {
		return f, err
	}
	alone, err := jetStreamAlone(ctx, r)
	if err != nil {
		return f, err
	}
	f.AddHistogram("jetstream_", alone)
	return f, nil
}

func latencyOf(ctx context.Context, f *measure.Figures, prefix string, s system.Server) error {
	l, err := load.New(ctx, load.Crowd{Clients: latencyClients, Target: s.Target()})
	if err != nil {
		return err
	}
	r := &load.Runner{Server: s, Load: l, Streams: 1, Clients: latencyClients}
	_, err = r.Paced(ctx, latencyPerSecond, latencyTime)
	hist := l.Close()
	if err != nil {
		return err
	}
	f.AddHistogram(prefix, hist)
	return nil
}

// posted is Rejoin, with each message published in an HTTP request of its own.
type posted struct{ *system.Rejoin }

func (p posted) Publish(ctx context.Context, stream int, message []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Edge+load.EventsPath(stream), bytes.NewReader(message))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := publisher.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return nil
}

var publisher = &http.Client{Timeout: 10 * time.Second}

// jetStreamAlone measures the log without Rejoin: publish with ack, one ordered consumer.
func jetStreamAlone(ctx context.Context, r *system.Rejoin) (*measure.Histogram, error) {
	const stream = 1 // latencyOf publishes to 0
	subject := load.SubjectOf(stream)
	consumer, err := r.JetStream.OrderedConsumer(ctx, "MCP_"+strconv.Itoa(event.Partition(load.SessionOf(stream), load.Partitions)), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return nil, err
	}
	const messages = latencyPerSecond * int64(latencyTime/time.Second)
	var hist measure.Histogram
	finished := make(chan error, messages)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		now := time.Now().UnixNano()
		sent, err := load.SentAt(m.Data())
		if hist.Add(now - sent); err != nil || hist.Total == messages {
			finished <- err
		}
	})
	if err != nil {
		return nil, err
	}
	defer consuming.Stop()
	tick := time.NewTicker(time.Second / latencyPerSecond)
	defer tick.Stop()
	for n := range messages {
		<-tick.C
		if _, err := r.JetStream.Publish(ctx, subject, load.Stamped(int(n), load.MessageBytes)); err != nil {
			return nil, err
		}
	}
	select {
	case err := <-finished:
		return &hist, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
