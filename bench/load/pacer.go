package load

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/measure"
)

// Pacer publishes events at a steady rate, and measures how long each waits for its
// acknowledgement.
type Pacer struct {
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu   sync.Mutex
	acks *measure.Histogram
	err  error
}

// StartPacer starts to publish messages, each to the subject of its number.
func StartPacer(ctx context.Context, to *LogPublisher, perSecond int, subject func(n int) string) *Pacer {
	ctx, cancel := context.WithCancel(ctx)
	p := &Pacer{cancel: cancel, acks: &measure.Histogram{}}
	p.all.Go(func() {
		start := time.Now()
		for n := 0; ctx.Err() == nil; n++ {
			at := start.Add(time.Duration(n) * time.Second / time.Duration(perSecond))
			if wait := time.Until(at); wait > 0 {
				time.Sleep(wait)
			}
			sent := time.Now()
			ack, err := to.Store(ctx, &nats.Msg{Subject: subject(n), Data: Stamped(n, MessageBytes)})
			if err != nil {
				p.fail(ctx, err)
				return
			}
			p.all.Go(func() { p.wait(ctx, ack, sent) })
		}
	})
	return p
}

func (p *Pacer) wait(ctx context.Context, ack jetstream.PubAckFuture, sent time.Time) {
	select {
	case <-ack.Ok():
		took := time.Since(sent)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acks.Add(took.Nanoseconds())
	case err := <-ack.Err():
		p.fail(ctx, err)
	case <-ctx.Done():
	}
}

func (p *Pacer) fail(ctx context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil {
		p.err = errors.Join(p.err, err)
	}
}

// Take returns the latencies since it was last called.
func (p *Pacer) Take() *measure.Histogram {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.acks
	p.acks = &measure.Histogram{}
	return h
}

// Stop ends it, and returns its errors.
func (p *Pacer) Stop() error {
	p.cancel()
	p.all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
