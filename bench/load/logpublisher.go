package load

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

// LogPublisher publishes straight to a log.
type LogPublisher struct {
	Conn      *nats.Conn
	JetStream jetstream.JetStream

	mu     sync.Mutex
	failed error // the first publish that failed
}

// NewLogPublisher connects to NATS servers.
func NewLogPublisher(url string) (*LogPublisher, error) {
	p := &LogPublisher{}
	var err error
	if p.Conn, err = nats.Connect(url); err != nil {
		return nil, err
	}
	p.JetStream, err = jetstream.New(p.Conn, jetstream.WithPublishAsyncMaxPending(unacknowledged),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.failed == nil {
				p.failed = fmt.Errorf("publish to %s: %w", m.Subject, err)
			}
		}))
	if err != nil {
		p.Conn.Close()
		return nil, err
	}
	return p, nil
}

// Publish publishes a message to a stream, as Store does.
func (p *LogPublisher) Publish(ctx context.Context, stream int, message []byte) error {
	_, err := p.Store(ctx, &nats.Msg{Subject: SubjectOf(stream), Data: message})
	return err
}

// Store publishes a message, once there are few enough on their way.
func (p *LogPublisher) Store(ctx context.Context, message *nats.Msg) (jetstream.PubAckFuture, error) {
	for {
		ack, err := p.JetStream.PublishMsgAsync(message) // waits for 200 ms
		if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
			return ack, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// Push does nothing: the goroutine of the connection writes.
func (p *LogPublisher) Push() error { return nil }

// Flush waits until all messages are acknowledged, and returns the first error of one.
func (p *LogPublisher) Flush(ctx context.Context) error {
	select {
	case <-p.JetStream.PublishAsyncComplete():
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}
