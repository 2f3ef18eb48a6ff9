package client

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/shared/clocks"
)

// Publisher stores messages. All its methods are safe for concurrent use.
//
// Messages of one stream are stored in the order of their Publish calls, those of
// different streams side by side. While a request for a stream is under way, the
// messages that follow it are collected for the next one: so a request is as large
// as it has to be, and no message waits to make it larger.
//
// A message is repeated, with the same key, for as long as it is known not to be
// stored, and for RepeatWithin after an attempt whose outcome is unknown. The messages
// after it wait. A message that is refused for good stops no other.
type Publisher struct {
	cfg      PublisherConfig
	endpoint endpoint
	buffer   *buffer
	keys     string        // the common beginning of all keys of this publisher
	keyed    atomic.Uint64 // keys made
	slots    chan struct{} // one for each request under way
	now      func() clocks.Instant

	ctx    context.Context // of the goroutines, which outlive every call
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // one for each lane

	mu         sync.Mutex
	lanes      map[address]*lane
	batchBytes int // most bytes of a request; less than MaxBatchBytes after a 413
}

// address names a stream.
type address struct{ session, stream string }

// NewPublisher returns a publisher, which has to be closed. The error wraps
// [ErrInvalidConfig].
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	p := &Publisher{
		cfg:      cfg,
		endpoint: newEndpoint(cfg.URL, cfg.Token, cfg.HTTPClient, cfg.MaxRequests),
		buffer:   newBuffer(cfg.MaxBufferedMessages, cfg.MaxBufferedBytes),
		keys:     rand.Text(),
		slots:    make(chan struct{}, cfg.MaxRequests),
		now:      clocks.New(time.Now),
		lanes:    map[address]*lane{},

		batchBytes: cfg.MaxBatchBytes,
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// Publish puts a message into the buffer and returns its result, which gets its outcome
// later. It waits while the buffer is full, and no longer than ctx; afterwards ctx
// plays no part. It does not keep m.Data.
//
// The errors are those of a message that can never be stored, from the package
// event or [ErrInvalidKey] or [ErrTooLarge], [ErrClosed], and the cause of ctx's
// end. With an error there is no result, and nothing was sent.
func (p *Publisher) Publish(ctx context.Context, m Message) (*Result, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	key := m.Key
	if key == "" {
		key = p.keys + "-" + strconv.FormatUint(p.keyed.Add(1), 36)
	}
	e := &entry{line: m.line(key), result: &Result{done: make(chan struct{})}}
	if err := p.buffer.take(ctx, len(e.line)); err != nil {
		return nil, err
	}
	if !p.enqueue(address{m.Session, m.Stream}, e) {
		p.buffer.free(len(e.line))
		return nil, ErrClosed
	}
	return e.result, nil
}

// PublishAndWait publishes a message and waits for its outcome: the errors are
// those of [Publisher.Publish] and [Result.Wait]. When ctx ends before, the message
// may still be stored.
func (p *Publisher) PublishAndWait(ctx context.Context, m Message) (Stored, error) {
	result, err := p.Publish(ctx, m)
	if err != nil {
		return Stored{}, err
	}
	return result.Wait(ctx)
}

// Flush waits until every message that was published before has an outcome, which its
// [Result] holds. It returns the cause of ctx's end when that is earlier.
func (p *Publisher) Flush(ctx context.Context) error {
	p.mu.Lock()
	var pending []*Result
	for _, l := range p.lanes {
		for _, e := range l.queue {
			pending = append(pending, e.result)
		}
	}
	p.mu.Unlock()
	for _, r := range pending {
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Close takes no more messages, waits until every message has an outcome, and ends
// all goroutines. When ctx ends before, Close gives up: the outcome of the remaining
// messages is [ErrClosed], with [ErrUnknown] where one may be stored, and Close returns the
// cause of ctx's end. It may be called several times.
func (p *Publisher) Close(ctx context.Context) error {
	p.buffer.close()
	err := p.Flush(ctx)
	p.cancel(ErrClosed)
	p.wg.Wait()
	p.endpoint.rest()
	return err
}

// enqueue puts an entry at the end of its stream's lane. It returns false when the
// publisher is closed.
func (p *Publisher) enqueue(to address, e *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.buffer.closed.Err() != nil {
		return false
	}
	l, ok := p.lanes[to]
	if !ok {
		l = &lane{publisher: p, address: to, wait: backoff{first: p.cfg.Retry, most: p.cfg.MaxRetry}}
		p.lanes[to] = l
		p.wg.Go(l.run)
	}
	l.queue = append(l.queue, e)
	return true
}
