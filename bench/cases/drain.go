package cases

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/bench/measure"
)

// forgotten is how long JetStream surely needs to forget blocks that were read (10 s by
// itself), so that no reader profits from the previous one.
const forgotten = 12 * time.Second

// drained selects the events that drains read: the newest events of each partition, or
// with 0 all; with their messages or without.
type drained struct {
	newest      uint64
	headersOnly bool
}

// addDrains adds how long drains take, one partition after the other and all at once.
func addDrains(ctx context.Context, f *measure.Figures, nc *nats.Conn, what drained) error {
	for _, c := range []struct {
		metric  string
		atATime int
	}{{"drain_seconds", 1}, {"drain16_seconds", load.Partitions}} {
		if err := measure.Pause(ctx, forgotten); err != nil {
			return err
		}
		took, err := drain(ctx, nc, what, c.atATime)
		if err != nil {
			return fmt.Errorf("draining the log: %w", err)
		}
		f.Add(c.metric, took.Seconds())
	}
	return nil
}

// drain returns how long plain ordered consumers of nats.go take to read events of each
// partition of a log, one consumer for each and so many at a time.
func drain(ctx context.Context, nc *nats.Conn, what drained, atATime int) (time.Duration, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	turns, errs := make(chan struct{}, atATime), make([]error, load.Partitions)
	var all sync.WaitGroup
	for p := range load.Partitions {
		turns <- struct{}{}
		all.Go(func() {
			errs[p] = drainPartition(ctx, js, "MCP_"+strconv.Itoa(p), what)
			<-turns
		})
	}
	all.Wait()
	return time.Since(start), errors.Join(errs...)
}

func drainPartition(ctx context.Context, js jetstream.JetStream, name string, what drained) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return nil
	}
	from := state.FirstSeq
	if what.newest > 0 && state.LastSeq-state.FirstSeq >= what.newest {
		from = state.LastSeq - what.newest + 1
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, HeadersOnly: what.headersOnly})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // it would expire, later
	}()
	var read atomic.Int64
	done := make(chan struct{})
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		read.Add(1)
		if meta, err := m.Metadata(); err == nil && meta.Sequence.Stream == state.LastSeq {
			close(done)
		}
	})
	if err != nil {
		return err
	}
	defer consuming.Stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %d events read: %w", name, read.Load(), ctx.Err())
	}
}
