package natsconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
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
	// Silence is how long nothing may come of the server of a cluster that has the
	// consumer before it counts as lost, at least 200 ms. Default: 2 s.
	Silence time.Duration
}

// Reader hands over the messages of a JetStream stream in their order, with an ordered
// consumer (ADR-15 of NATS), until the first trouble: the caller begins
// again with another one.
//
// The ordered consumer of nats.go mends itself, and keeps a lock meanwhile. When its
// request is lost with a connection that is 10 s, in which it cannot be stopped either
// (docs/upstream/0001; docs/adr/0010 has the figures).
//
// In a cluster the consumer lies on any of the servers that hold the stream, in one copy.
// That server may be behind the leader: that it has nothing more ([Reader.Pending], and
// NumPending of a message) does not say that the leader has nothing more. See [Server.Clustered].
type Reader struct {
	// Pending is how many messages there were to read when the consumer was made.
	Pending uint64

	js        jetstream.JetStream
	server    *Server
	stream    string
	consumer  jetstream.Consumer
	ahead     int
	silence   time.Duration
	handle    func(jetstream.Msg, *jetstream.MsgMetadata)
	broken    chan error
	failed    atomic.Bool
	heard     atomic.Bool // a message has come
	delivered uint64      // the consumer's sequence; the handler's own

	mu        sync.Mutex
	consuming jetstream.ConsumeContext
	began     time.Time
	again     *time.Timer // until the next attempt to begin
	stopped   bool
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
	server := NewServer(js.Conn())
	consumer, err := js.CreateConsumer(ctx, stream, c)
	if err != nil {
		return nil, err
	}
	r := &Reader{
		Pending: consumer.CachedInfo().NumPending,
		js:      js, server: server, stream: stream, consumer: consumer, ahead: cmp.Or(cfg.Ahead, jetstream.DefaultMaxMessages), silence: cmp.Or(cfg.Silence, defaultSilence), broken: make(chan error, 1),
	}
	return r, nil
}

// Clustered is that of the server by way of which the consumer was made.
func (r *Reader) Clustered() bool { return r.server.Clustered() }

// Start begins to call handle for every message, one after the other. While handle does
// not return, no more than what is on its way is read.
func (r *Reader) Start(handle func(jetstream.Msg, *jetstream.MsgMetadata)) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle, r.began = handle, time.Now()
	return r.consume()
}

// consume asks for messages. The caller holds the lock.
func (r *Reader) consume() (err error) {
	opts := []jetstream.PullConsumeOpt{
		jetstream.PullMaxMessages(r.ahead),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { r.trouble(err) }),
	}
	if r.Clustered() {
		// The default is half a minute: a single server goes with the connection.
		opts = append(opts, jetstream.PullHeartbeat(r.silence/2))
	}
	r.consuming, err = r.consumer.Consume(r.take, opts...)
	return err
}

func (r *Reader) take(msg jetstream.Msg) {
	r.heard.Store(true)
	meta, err := msg.Metadata()
	switch {
	case err != nil:
		r.fail(err)
	case meta.Sequence.Consumer != r.delivered+1:
		r.fail(fmt.Errorf("message %d came after %d", meta.Sequence.Consumer, r.delivered))
	default:
		r.delivered++
		r.handle(msg, meta)
	}
}

const (
	defaultSilence = 2 * time.Second
	// beginEvery is how long a reader waits until it asks again a consumer that is there,
	// but of which the connected server of the cluster has yet to hear (docs/upstream/0014).
	beginEvery = 10 * time.Millisecond
)

// trouble is called by nats.go.
func (r *Reader) trouble(err error) {
	if errors.Is(err, nats.ErrNoResponders) && !r.heard.Load() && r.Clustered() && r.beginAgain() {
		return
	}
	r.fail(err)
}

// beginAgain has the messages asked for once more, and reports whether there is time.
func (r *Reader) beginAgain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.began) > r.silence {
		return false
	}
	if !r.stopped {
		r.again = time.AfterFunc(beginEvery, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.stopped {
				return
			}
			r.consuming.Stop() // nothing comes on a consumer without an answer
			if err := r.consume(); err != nil {
				r.fail(err)
			}
		})
	}
	return true
}

// Broken gets the first trouble. What is lost with a connection may take half a minute
// to be noticed: see [While].
func (r *Reader) Broken() <-chan error { return r.broken }

func (r *Reader) fail(err error) {
	r.failed.Store(true)
	select {
	case r.broken <- err:
	default:
	}
}

// removeWithin bounds the removal of a consumer.
const removeWithin = time.Second

// end ends the reading and waits for what nats.go calls, which may need the lock.
func (r *Reader) end() {
	r.mu.Lock()
	r.stopped = true
	if r.again != nil {
		r.again.Stop()
	}
	consuming := r.consuming
	r.mu.Unlock()
	if consuming != nil {
		consuming.Stop()
		<-consuming.Closed()
	}
}

// Stop ends the reading, waits for a handler that runs, and removes the consumer. The
// error says that this is left to the server.
func (r *Reader) Stop() error {
	r.end()
	name := r.consumer.CachedInfo().Name
	if r.failed.Load() {
		// Its server may be gone, and then no answer comes. What is lost is left to the server.
		return r.js.Conn().Publish(jetstream.DefaultAPIPrefix+"CONSUMER.DELETE."+r.stream+"."+name, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	ctx, done := While(ctx, r.js.Conn())
	defer done()
	err := r.js.DeleteConsumer(ctx, r.stream, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}
