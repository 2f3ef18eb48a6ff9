package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// unacknowledged is how many messages may be on their way to the log.
const unacknowledged = 4096

// logPublisher publishes straight to a log.
type logPublisher struct {
	nc *nats.Conn
	js jetstream.JetStream

	mu     sync.Mutex
	failed error // the first publish that failed
}

func newLogPublisher(url string) (*logPublisher, error) {
	p := &logPublisher{}
	var err error
	if p.nc, err = nats.Connect(url); err != nil {
		return nil, err
	}
	p.js, err = jetstream.New(p.nc, jetstream.WithPublishAsyncMaxPending(unacknowledged),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.failed == nil {
				p.failed = fmt.Errorf("publish to %s: %w", m.Subject, err)
			}
		}))
	if err != nil {
		p.nc.Close()
		return nil, err
	}
	return p, nil
}

func (p *logPublisher) publish(ctx context.Context, stream int, message []byte) error {
	_, err := p.store(ctx, &nats.Msg{Subject: subjectOf(stream), Data: message})
	return err
}

// store publishes a message, once there are few enough on their way.
func (p *logPublisher) store(ctx context.Context, message *nats.Msg) (jetstream.PubAckFuture, error) {
	for {
		ack, err := p.js.PublishMsgAsync(message) // waits for 200 ms
		if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
			return ack, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (p *logPublisher) push() error { return nil } // the connection's own goroutine does

func (p *logPublisher) flush(ctx context.Context) error {
	select {
	case <-p.js.PublishAsyncComplete():
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}
