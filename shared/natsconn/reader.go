package natsconn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// ReaderConfig configures a [Reader].
type ReaderConfig struct {
	// Filter is the subject of the messages; it may have wildcards. Default: all.
	Filter string
	// After is the sequence that they come after.
	After uint64
	// Latest leaves out all but the newest message of each subject. It excludes After.
	Latest bool
	// HeadersOnly leaves out the messages' data.
	HeadersOnly bool
	// Ahead is how many messages are asked for at a time, as far as they are no more than about
	// 2 MiB together: a server ends a connection for which 64 MiB wait. Default: 500.
	Ahead int
	// Idle is how long the server keeps the consumer when its reader has died. Default: 1 min.
	Idle time.Duration
	// Silence is how long the server of a cluster that has the consumer may send
	// nothing before it counts as lost, at least 200 ms. Default: 2 s.
	Silence time.Duration
}

// Reader delivers the messages of a JetStream stream in their order, with an ordered
// consumer (ADR-15 of NATS), until the first error: the caller begins again with
// another Reader.
//
// The ordered consumer of nats.go repairs itself, and keeps a lock meanwhile. When its
// request is lost with a connection that is 10 s, in which it cannot be stopped either
// (docs/upstream/0001; docs/adr/0010 has the figures). Its Consume stalls at times when it
// asks for a number of bytes, and takes some messages for status messages of the server
// (docs/upstream/0003 and 0005), so a Reader makes the requests by itself.
//
// In a cluster the consumer lies on any of the servers that hold the stream, in one copy.
// That server may be behind the leader: when it has no more messages, the leader may have some. See
// [Server.Clustered]. [Reader.Pending] and NumPending of a message do not even prove that the server has no more:
// they are too small at times (docs/upstream/0039).
type Reader struct {
	// Pending is how many messages there were to read when the consumer was made.
	Pending uint64

	js        jetstream.JetStream
	server    *Server
	stream    string
	consumer  string
	next      string // the subject of requests for messages
	request   pullRequest
	silence   time.Duration // after which a server that sends nothing counts as lost
	patience  time.Duration // for a consumer that the server does not know yet
	handle    func(*nats.Msg, *nats.MsgMetadata)
	broken    chan error
	failed    atomic.Bool
	heard     atomic.Bool // a message has come
	delivered uint64      // the consumer's sequence; the handler's own
	left      pullRequest // the unanswered part of the request; the handler's own
	large     bool        // the next message is larger than the bytes of a request; the handler's own
	quiet     *time.Timer // until the server counts as lost

	mu      sync.Mutex
	asking  *nats.Subscription
	closed  chan struct{} // asking has ended
	began   time.Time
	again   *time.Timer // until the next attempt to begin
	stopped atomic.Bool // set with mu held
}

// pullRequest asks a consumer for messages (nats-server's JSApiConsumerGetNextRequest).
type pullRequest struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes,omitempty"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

const (
	// requestExpires is how long a server holds a request.
	requestExpires = 30 * time.Second
	// requestBytes bounds the messages that answer it, but for a single one.
	requestBytes = 2 << 20
)

// NewReader makes the consumer. Stop has to be called.
func NewReader(ctx context.Context, js jetstream.JetStream, stream string, cfg ReaderConfig) (*Reader, error) {
	c := jetstream.ConsumerConfig{
		FilterSubject: cfg.Filter, HeadersOnly: cfg.HeadersOnly, InactiveThreshold: cfg.Idle,
		Name:          nuid.Next(), // one that is asked for twice is made once
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
	var consumer jetstream.Consumer
	if err := server.Repeat(ctx, func(ctx context.Context) (err error) {
		consumer, err = js.CreateConsumer(ctx, stream, c)
		return err
	}); err != nil {
		return nil, err
	}
	r := &Reader{
		Pending: consumer.CachedInfo().NumPending,
		js:      js, server: server, stream: stream, consumer: consumer.CachedInfo().Name, patience: cmp.Or(cfg.Silence, defaultSilence), broken: make(chan error, 1),
	}
	r.next = jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + r.consumer
	r.request = pullRequest{Batch: cmp.Or(cfg.Ahead, jetstream.DefaultMaxMessages), MaxBytes: requestBytes, Expires: requestExpires, Heartbeat: requestExpires / 2}
	if r.Clustered() { // the loss of a single server ends the connection
		r.request.Heartbeat = r.patience / 2
	}
	r.silence = 2 * r.request.Heartbeat
	return r, nil
}

// Clustered is that of the server through which the consumer was made.
func (r *Reader) Clustered() bool { return r.server.Clustered() }

// Start begins to call handle for every message, one after the other. While handle does
// not return, only messages that were already requested are read.
func (r *Reader) Start(handle func(*nats.Msg, *nats.MsgMetadata)) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle, r.began, r.closed, r.left = handle, time.Now(), make(chan struct{}), r.request
	r.quiet = time.AfterFunc(r.silence, func() { r.fail(jetstream.ErrNoHeartbeat) })
	conn := r.js.Conn()
	if r.asking, err = conn.Subscribe(conn.NewInbox(), r.receive); err != nil {
		r.quiet.Stop()
		return err
	}
	closed := sync.OnceFunc(func() { close(r.closed) })
	r.asking.SetClosedHandler(func(string) { closed() })
	if !r.asking.IsValid() { // it was closed before it had the handler
		closed()
	}
	return r.ask(r.request)
}

// ask sends a request.
func (r *Reader) ask(request pullRequest) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return r.js.Conn().PublishRequest(r.next, r.asking.Subject, data)
}

// more asks for the messages after the request that has ended. It is the handler's own.
func (r *Reader) more() {
	request := r.request
	if r.large {
		request.Batch, request.MaxBytes = 1, 0
	}
	r.left, r.large = request, false
	if err := r.ask(request); err != nil {
		r.fail(err)
	}
}

// receive takes a message, or a status message about a request, which has no reply subject.
func (r *Reader) receive(msg *nats.Msg) {
	r.quiet.Stop()
	defer func() {
		if !r.failed.Load() && !r.stopped.Load() {
			r.quiet.Reset(r.silence)
		}
	}()
	if msg.Reply != "" {
		r.left.Batch--
		r.left.MaxBytes -= msg.Size()
		// A server does not report a request that ends with its last byte (docs/upstream/0033).
		if r.take(msg) && (r.left.Batch == 0 || r.left.MaxBytes == 0) {
			r.more()
		}
		return
	}
	switch status, text := msg.Header.Get("Status"), msg.Header.Get("Description"); {
	case status == "100", text == "Batch Completed": // the next request is under way
	case status == "408": // expired
		r.more()
	case text == "Message Size Exceeds MaxBytes":
		r.large = r.left.Batch == r.request.Batch
		r.more()
	case status == "503":
		r.unanswered()
	default:
		r.fail(fmt.Errorf("the server ends a request for messages: %s %s", status, text))
	}
}

// take passes a message to handle, and reports whether it is the next one.
func (r *Reader) take(msg *nats.Msg) bool {
	r.heard.Store(true)
	meta, err := msg.Metadata()
	switch {
	case r.failed.Load() || r.stopped.Load():
		return false
	case err != nil:
		r.fail(err)
		return false
	case meta.Sequence.Consumer != r.delivered+1:
		r.fail(fmt.Errorf("message %d came after %d", meta.Sequence.Consumer, r.delivered))
		return false
	}
	r.delivered++
	r.handle(msg, meta)
	return true
}

const (
	defaultSilence = 2 * time.Second
	// beginEvery is how long a reader waits until it asks again a consumer that exists, but
	// that the connected server of the cluster does not know yet (docs/upstream/0014).
	beginEvery = 10 * time.Millisecond
)

// unanswered is called when a request for messages has no responders.
func (r *Reader) unanswered() {
	if !r.heard.Load() && r.Clustered() && r.beginAgain() {
		return
	}
	r.fail(nats.ErrNoResponders)
}

// beginAgain makes the first request once more, and reports whether there is time.
func (r *Reader) beginAgain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.began) > r.patience {
		return false
	}
	if !r.stopped.Load() {
		r.again = time.AfterFunc(beginEvery, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.stopped.Load() {
				return
			}
			if err := r.ask(r.request); err != nil {
				r.fail(err)
			}
		})
	}
	return true
}

// Broken receives the first error. The loss of a request with its connection may take half
// a minute to be noticed: see [While].
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

// end ends the reading and waits for a handler that runs, which may need the lock.
func (r *Reader) end() {
	r.mu.Lock()
	r.stopped.Store(true)
	if r.again != nil {
		r.again.Stop()
	}
	asking := r.asking
	r.mu.Unlock()
	if asking == nil {
		return
	}
	r.quiet.Stop()
	_ = asking.Unsubscribe() // the connection may be closed, and the subscription with it
	<-r.closed
}

// Stop ends the reading, waits for a handler that runs, and removes the consumer. After
// an error the removal is left to the server.
func (r *Reader) Stop() error {
	r.end()
	if r.failed.Load() {
		// Its server may be down, and then no answer comes. A lost request leaves the removal to the server.
		return r.js.Conn().Publish(jetstream.DefaultAPIPrefix+"CONSUMER.DELETE."+r.stream+"."+r.consumer, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	ctx, done := While(ctx, r.js.Conn())
	defer done()
	err := r.js.DeleteConsumer(ctx, r.stream, r.consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}
