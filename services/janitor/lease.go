package janitor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/link"
)

// LeaseBucket is the key-value bucket of the lease, with the key [LeaseKey]. It lies in
// memory: a server that was started anew has none, so that a janitor that dies with its
// server keeps nobody from beginning the generations.
const (
	LeaseBucket = "MCP_LEASE"
	LeaseKey    = "janitor"
)

// DefaultLease is the lease of a configuration that says nothing.
const DefaultLease = 5 * time.Second

// holder is the value of the lease's key.
type holder struct {
	ID   string `json:"id"`
	Host string `json:"host,omitempty"`
}

// holderSubject is where the janitor with an ID answers as long as it is connected.
func holderSubject(id string) string { return "mcp.janitor.alive." + id }

var (
	// errNotActing is returned when the lease has been lost, or is in doubt.
	errNotActing = errors.New("this janitor is not the acting one")

	errStopped = errors.New("the janitor stops")
)

// lease makes one janitor of many the acting one.
//
//	run ──▶ live, one for each connection ──▶ act, one for each term
//	   │                                 └──▶ follow: notices that the lease is released
//	   └──▶ a subscription that says that this janitor is connected
//
// mu guards state, and is never held across I/O.
type lease struct {
	nc         *nats.Conn
	js         jetstream.JetStream
	kv         jetstream.KeyValue // of the connection's life; run's own, as is complained
	complained bool
	replicas   int
	logger     *slog.Logger
	now        func() instant

	mu    sync.Mutex
	state candidacy
	term  *term // nil while another one acts

	freed  chan struct{} // somebody has released the lease
	placed chan struct{} // closed when it is known for the first time who acts
	place  func()
}

func newLease(length time.Duration, nc *nats.Conn, replicas int, logger *slog.Logger) (*lease, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(length))
	if err != nil {
		return nil, err
	}
	start := time.Now()
	l := &lease{
		nc: nc, js: js, replicas: replicas, logger: logger,
		now:   func() instant { return instant{time.Since(start), time.Duration(time.Now().UnixNano())} },
		state: candidacy{id: rand.Text(), lease: length},
		freed: make(chan struct{}, 1), placed: make(chan struct{}),
	}
	l.place = sync.OnceFunc(func() { close(l.placed) })
	return l, nil
}

// term is the time from one acquisition of the lease to its loss.
type term struct {
	id    string
	lease *lease
	ctx   context.Context
	end   context.CancelCauseFunc
	timer *time.Timer
	ended chan struct{} // act has returned
	err   error         // of act
}

type termKey struct{}

// stillActing returns an error that wraps [errNotActing] when ctx is of a term that is
// over, by any clock. A process that was stopped, or a machine that slept, finds out
// here what its timers will say in a moment. Without a term there is nothing to lose.
func stillActing(ctx context.Context) error {
	t, ok := ctx.Value(termKey{}).(*term)
	if !ok {
		return ctx.Err()
	}
	t.check()
	if t.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errNotActing, context.Cause(t.ctx))
	}
	return ctx.Err()
}

// check ends the term when it is over.
func (t *term) check() {
	l := t.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != t {
		return // it has ended
	}
	now := l.now()
	if l.state.over(now, l.connection()) {
		t.end(errNotActing)
		return
	}
	t.timer.Reset(l.state.left(now))
}

// connection returns the number of the connection's life.
func (l *lease) connection() uint64 { return l.nc.Stats().Reconnects }

// acting returns the term, or nil.
func (l *lease) acting() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// held reports whether this janitor acts now.
func (l *lease) held() bool {
	t := l.acting()
	return t != nil && t.ctx.Err() == nil
}

// run stands for the lease until ctx ends, and calls act for each term with a context
// that ends with it. It returns act's error, if that does not come with the end.
func (l *lease) run(ctx context.Context, act func(context.Context) error) error {
	alive, err := l.nc.Subscribe(holderSubject(l.state.id), func(msg *nats.Msg) { _ = msg.Respond(nil) })
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", holderSubject(l.state.id), err)
	}
	defer func() { _ = alive.Unsubscribe() }() // the connection may be closed already
	connected := l.nc.StatusChanged(nats.CONNECTED)
	defer l.nc.RemoveStatusListener(connected)
	for ctx.Err() == nil {
		if l.nc.IsConnected() {
			life, done := link.While(ctx, l.nc)
			err := l.live(life, ctx, act)
			done()
			if err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-connected:
		}
	}
	return nil
}

// live is run for one life of the connection, with which ctx ends. program is what ends
// with the program alone.
func (l *lease) live(ctx, program context.Context, act func(context.Context) error) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	follow := sync.OnceFunc(func() { following.Go(func() { l.follow(ctx) }) })
	l.kv, l.complained = nil, false
	for ctx.Err() == nil {
		t := l.acting()
		result, acting, wait := l.attempt(ctx)
		switch {
		case acting && t == nil:
			t = l.begin(ctx, act)
		case !acting && t != nil:
			if err := l.finish(t, errNotActing); err != nil {
				return err
			}
			t = nil
		}
		if !acting && wait > 0 {
			l.place()
			if result == taken {
				follow()
			}
		}
		var ended <-chan struct{}
		if t != nil {
			ended = t.ended
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-l.freed:
		case <-ended:
			if err := l.finish(t, errNotActing); err != nil {
				return err
			}
		}
	}
	return l.leave(program)
}

// attempt does the next write, and says whether this janitor acts then, and when the
// next one is due. A term that is over is not renewed.
func (l *lease) attempt(ctx context.Context) (result result, acting bool, wait time.Duration) {
	l.mu.Lock()
	w := l.state.next(l.now(), l.connection())
	over := l.term != nil && !l.state.acting
	l.mu.Unlock()
	if over {
		return unknown, false, 0
	}
	o := outcome{result: unknown}
	if l.kv != nil || l.open(ctx) {
		o = l.try(ctx, w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.state.learn(w, o, now, l.connection())
	if l.state.acting && l.term != nil {
		l.term.timer.Reset(l.state.left(now))
	}
	return o.result, l.state.acting, l.state.due(now)
}

// leave ends the term at the end of a connection's life, and gives the lease back at the
// end of the program.
func (l *lease) leave(program context.Context) error {
	t := l.acting()
	if t == nil {
		return nil
	}
	revision, why := l.state.revision, link.ErrChanged
	if program.Err() != nil {
		why = errStopped
	}
	err := l.finish(t, why)
	if program.Err() != nil {
		l.release(program, revision)
	}
	return err
}

// begin begins a term.
func (l *lease) begin(ctx context.Context, act func(context.Context) error) *term {
	t := &term{id: rand.Text(), lease: l, ended: make(chan struct{})}
	ctx, t.end = context.WithCancelCause(ctx)
	t.ctx = context.WithValue(ctx, termKey{}, t)
	t.timer = time.AfterFunc(time.Hour, t.check)
	l.mu.Lock()
	l.term = t
	t.timer.Reset(l.state.left(l.now()))
	l.mu.Unlock()
	l.logger.Info("this janitor acts from now on", "lease", l.state.lease.String())
	go func() { // finish waits for it
		defer close(t.ended)
		if err := act(t.ctx); err != nil && t.ctx.Err() == nil {
			t.err = err
		}
	}()
	return t
}

// finish ends a term, and returns act's error when it has ended.
func (l *lease) finish(t *term, why error) error {
	t.end(why)
	t.timer.Stop()
	<-t.ended
	l.mu.Lock()
	l.term = nil
	l.state.stepDown()
	l.mu.Unlock()
	if errors.Is(why, errStopped) {
		l.logger.Info("this janitor has stopped acting")
	} else {
		l.logger.Warn("this janitor has stepped down", "reason", context.Cause(t.ctx))
	}
	return t.err
}

// open makes the bucket if it is missing. An existing one says how long the lease is.
func (l *lease) open(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.state.lease/renewShare)
	defer cancel()
	kv, err := l.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: LeaseBucket, Description: "Rejoin: which janitor acts",
		TTL: l.state.lease, Storage: jetstream.MemoryStorage, Replicas: l.replicas,
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		kv, err = l.adopt(ctx)
	}
	if err != nil {
		l.complain(ctx, "cannot open the bucket of the lease", err)
		return false
	}
	l.kv = kv
	return true
}

// complain logs the first trouble of a connection.
func (l *lease) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && !l.complained {
		l.complained = true
		l.logger.Warn(what, "error", err) //nolint:sloglint // one of two constants
	}
}

// adopt takes the lease's length from the bucket.
func (l *lease) adopt(ctx context.Context) (jetstream.KeyValue, error) {
	kv, err := l.js.KeyValue(ctx, LeaseBucket)
	if err != nil {
		return nil, err
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, err
	}
	ttl := status.TTL()
	if ttl <= 0 {
		return nil, fmt.Errorf("the bucket %s keeps leases for ever", LeaseBucket)
	}
	if ttl != l.state.lease {
		l.logger.Warn("the lease has another length already, and keeps it", "flag", "--lease", "given", l.state.lease.String(), "lease", ttl.String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.lease = ttl
	return kv, nil
}

// try does a write.
func (l *lease) try(ctx context.Context, w write) outcome {
	ctx, cancel := context.WithTimeout(ctx, l.state.lease/waitShare)
	defer cancel()
	host, _ := os.Hostname() // for people only
	value, err := json.Marshal(holder{l.state.id, host})
	if err != nil {
		return outcome{result: unknown}
	}
	var revision uint64
	if w.revision == 0 {
		revision, err = l.kv.Create(ctx, LeaseKey, value)
	} else {
		revision, err = l.kv.Update(ctx, LeaseKey, value, w.revision)
	}
	if err == nil {
		return outcome{result: written, revision: revision}
	}
	if !conflict(err) {
		l.complain(ctx, "cannot write the lease", err)
		return outcome{result: unknown}
	}
	return l.read(ctx)
}

// conflict reports whether a write was refused because of another revision.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && (api.ErrorCode == 10071 || api.ErrorCode == 10164)
}

// read says who has the lease.
func (l *lease) read(ctx context.Context) outcome {
	entry, err := l.kv.Get(ctx, LeaseKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return outcome{result: taken}
	}
	if err != nil {
		return outcome{result: unknown}
	}
	var h holder
	if err := json.Unmarshal(entry.Value(), &h); err != nil || h.ID == "" {
		return outcome{result: taken, revision: entry.Revision(), holder: "nobody we know"}
	}
	o := outcome{result: taken, revision: entry.Revision(), holder: h.ID}
	if h.ID != l.state.id {
		o.gone = l.gone(ctx, h.ID)
	}
	return o
}

// gone reports whether a janitor has surely lost its connection to the only server that
// there is, so that nothing it does has any effect before it connects again, and then
// it does not hold the lease any more.
func (l *lease) gone(ctx context.Context, id string) bool {
	if l.nc.ConnectedClusterName() != "" {
		return false
	}
	_, err := l.nc.RequestWithContext(ctx, holderSubject(id), nil)
	return errors.Is(err, nats.ErrNoResponders)
}

// follow notices that the lease is released, until ctx ends. When it ends before, time
// alone tells.
func (l *lease) follow(ctx context.Context) {
	_ = bucket.Follow(ctx, l.js, LeaseBucket, func(e bucket.Entry) {
		if e.Removed && e.Key == LeaseKey {
			select {
			case l.freed <- struct{}{}:
			default:
			}
		}
	}, func() {})
}

// releaseWithin bounds the release of the lease.
const releaseWithin = time.Second

// release gives the lease back, so that another one need not wait for it to run out.
func (l *lease) release(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	ctx, done := link.While(ctx, l.nc)
	defer done()
	if err := l.kv.Delete(ctx, LeaseKey, jetstream.LastRevision(revision)); err != nil {
		l.logger.Info("the lease was not released, and will run out", "error", err)
	}
}
