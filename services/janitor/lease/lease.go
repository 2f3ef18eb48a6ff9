// Package lease says which of several janitors acts: the one that holds a lease in NATS, for as
// long as it renews it. What it does then has a context that ends with the lease.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/inbox"
	"rejoin/shared/natsconn"
)

// Bucket is the key-value bucket of the lease, with the key [Key]. It lies in
// memory: a restarted server has none, so that a janitor that dies with its
// server does not delay the generations.
const (
	Bucket = "MCP_LEASE"
	Key    = "janitor"
)

// Default is the lease of a configuration that says nothing.
const Default = 5 * time.Second

var (
	// ErrNotActing is returned when the lease has been lost, or is in doubt.
	ErrNotActing = errors.New("this janitor is not the acting one")

	errStopped = errors.New("the janitor stops")
)

// Lease makes one janitor of many the acting one.
//
//	run ──▶ live, one for each connection ──▶ act, one for each term
//	   │                                 └──▶ follow: notices that the lease is released
//	   └──▶ a subscription that says that this janitor is connected
//
// mu guards state, and is never held across I/O.
type Lease struct {
	nc         *nats.Conn
	js         jetstream.JetStream
	kv         jetstream.KeyValue // of the connection's life; run's own, as is complained
	complained bool
	replicas   int
	logger     *slog.Logger
	now        func() Instant

	mu    sync.Mutex
	state candidacy
	term  *Term // nil while another one acts

	freed chan struct{} // somebody has released the lease
}

// New returns a lease of a length for one janitor. clock is the time of day: a lease is over when
// either that or the monotonic clock says so.
func New(length time.Duration, nc *nats.Conn, replicas int, clock func() time.Time, logger *slog.Logger) (*Lease, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(length))
	if err != nil {
		return nil, err
	}
	start := time.Now()
	l := &Lease{
		nc: nc, js: js, replicas: replicas, logger: logger,
		now:   func() Instant { return Instant{time.Since(start), time.Duration(clock().UnixNano())} },
		state: candidacy{id: rand.Text(), lease: length},
		freed: make(chan struct{}, 1),
	}
	return l, nil
}

// SetClock has a clock that is based on the one before say what time it is.
func (l *Lease) SetClock(change func(now Instant) Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now
	l.now = func() Instant { return change(now()) }
}

// connection returns the number of the connection's life.
func (l *Lease) connection() uint64 { return l.nc.Stats().Reconnects }

// Run stands for the lease until ctx ends, and calls act for each term with a context
// that ends with it. It returns act's error, if that does not come with the end.
func (l *Lease) Run(ctx context.Context, act func(context.Context) error) error {
	alive, err := l.nc.Subscribe(holderSubject(l.state.id), func(msg *nats.Msg) {
		if inbox.Is(msg.Reply) {
			_ = msg.Respond(nil)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot subscribe to %s: %w", holderSubject(l.state.id), err)
	}
	defer func() { _ = alive.Unsubscribe() }() // the connection may be closed already
	connected := l.nc.StatusChanged(nats.CONNECTED)
	defer l.nc.RemoveStatusListener(connected)
	for ctx.Err() == nil {
		if l.nc.IsConnected() {
			life, done := natsconn.While(ctx, l.nc)
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
func (l *Lease) live(ctx, program context.Context, act func(context.Context) error) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	follow := sync.OnceFunc(func() { following.Go(func() { l.follow(ctx) }) })
	l.kv, l.complained = nil, false
	for ctx.Err() == nil {
		t := l.Acting()
		result, acting, wait := l.attempt(ctx)
		switch {
		case acting && t == nil:
			t = l.begin(ctx, act)
		case !acting && t != nil:
			if err := l.finish(t, ErrNotActing); err != nil {
				return err
			}
			t = nil
		}
		if !acting && wait > 0 && result == taken {
			follow()
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
			if err := l.finish(t, ErrNotActing); err != nil {
				return err
			}
		}
	}
	return l.leave(program)
}

// attempt does the next write, and says whether this janitor acts then, and when the
// next one is due. A term that is over is not renewed.
func (l *Lease) attempt(ctx context.Context) (result result, acting bool, wait time.Duration) {
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
func (l *Lease) leave(program context.Context) error {
	t := l.Acting()
	if t == nil {
		return nil
	}
	revision, why := l.state.revision, natsconn.ErrChanged
	if program.Err() != nil {
		why = errStopped
	}
	err := l.finish(t, why)
	if program.Err() != nil {
		l.release(program, revision)
	}
	return err
}
