package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ReaderConfig says what a [Reader] reads.
type ReaderConfig struct {
	// Filter is the subject of the messages; it may have wildcards. Default: all.
	Filter string
	// After is the sequence that they come behind.
	After uint64
	// Latest leaves out all but the newest message of each subject. It goes without After.
	Latest bool
	// HeadersOnly leaves out what the messages hold.
	HeadersOnly bool
	// Ahead is how many messages are asked for at a time. Default: 500.
	Ahead int
	// Idle is how long the server keeps the consumer when its reader has died. Default: 1 min.
	Idle time.Duration
}

// Reader hands over the messages of a JetStream stream in their order, with an ordered
// consumer (ADR-15 of NATS), until the first trouble: whoever wants to go on begins
// anew with another one.
//
// The ordered consumer of nats.go mends itself, and keeps a lock meanwhile. When its
// request is lost with a connection that is 10 s, in which it cannot be stopped either.
type Reader struct {
	// Pending is how many messages there were to read when the consumer was made.
	Pending uint64

	js        jetstream.JetStream
	stream    string
	consumer  jetstream.Consumer
	ahead     int
	consuming jetstream.ConsumeContext
	broken    chan error
	delivered uint64 // the consumer's sequence; the handler's own
}

// NewReader makes the consumer. Stop has to be called.
func NewReader(ctx context.Context, js jetstream.JetStream, stream string, cfg ReaderConfig) (*Reader, error) {
	c := jetstream.ConsumerConfig{
		FilterSubject: cfg.Filter, HeadersOnly: cfg.HeadersOnly, InactiveThreshold: cfg.Idle,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: cfg.After + 1,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1,
	}
	if cfg.Latest {
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverLastPerSubjectPolicy, 0
	}
	if cfg.Idle == 0 {
		c.InactiveThreshold = time.Minute
	}
	consumer, err := js.CreateConsumer(ctx, stream, c)
	if err != nil {
		return nil, err
	}
	r := &Reader{
		Pending: consumer.CachedInfo().NumPending,
		js:      js, stream: stream, consumer: consumer, ahead: cfg.Ahead, broken: make(chan error, 1),
	}
	if r.ahead == 0 {
		r.ahead = jetstream.DefaultMaxMessages
	}
	return r, nil
}

// Start begins to call handle for every message, one after the other. While handle does
// not return, no more than what is on its way is read.
func (r *Reader) Start(handle func(jetstream.Msg, *jetstream.MsgMetadata)) (err error) {
	r.consuming, err = r.consumer.Consume(func(msg jetstream.Msg) {
		meta, err := msg.Metadata()
		switch {
		case err != nil:
			r.fail(err)
		case meta.Sequence.Consumer != r.delivered+1:
			r.fail(fmt.Errorf("message %d came after %d", meta.Sequence.Consumer, r.delivered))
		default:
			r.delivered++
			handle(msg, meta)
		}
	}, jetstream.PullMaxMessages(r.ahead), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { r.fail(err) }))
	return err
}

// Broken gets the first trouble. What is lost with a connection may take half a minute
// to be noticed: see [While].
func (r *Reader) Broken() <-chan error { return r.broken }

func (r *Reader) fail(err error) {
	select {
	case r.broken <- err:
	default:
	}
}

// removeWithin bounds the removal of a consumer.
const removeWithin = time.Second

// Stop ends the reading, waits for a handler that runs, and removes the consumer. The
// error says that this is left to the server.
func (r *Reader) Stop() error {
	if r.consuming != nil {
		r.consuming.Stop()
		<-r.consuming.Closed()
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	ctx, done := While(ctx, r.js.Conn())
	defer done()
	err := r.js.DeleteConsumer(ctx, r.stream, r.consumer.CachedInfo().Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}
