//go:build docker

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rejoin "rejoin/shared/client"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// The load on a cluster. Each event goes to every subscriber of its session.
const (
	loadSessions    = 100
	loadSubscribers = 1000
	loadStream      = "main"
	// loadWaiting is how many events may wait for a cluster that does not take them.
	loadWaiting = 120_000
	// loadWrong is how many of the wrong events are told.
	loadWrong = 20
)

var loadRate = flag.Float64("rate", 1000, "how many events a second are published to the cluster")

// load publishes numbered events to the sessions of a cluster at an even rate, and checks
// that all of them come to each subscriber, once and in order.
//
//	startLoad ──starts──▶ publish: one goroutine, at the given rate
//	          ├──────────▶ confirm: one, the outcomes of what was published
//	          └──────────▶ subscribe: one for each subscriber
//	finish ends publish and waits for confirm and for what is under way, and ends all
type load struct {
	t           *testing.T
	url         string
	name        string // what the sessions' names begin with
	transport   *http.Transport
	publisher   *rejoin.Publisher
	outcomes    chan *rejoin.Result
	ctx         context.Context // the subscribers'
	end         context.CancelFunc
	stop        context.CancelFunc // ends publish
	publishing  sync.WaitGroup     // publish and confirm
	subscribing sync.WaitGroup
	begun       time.Time

	numbers   [loadSessions]atomic.Int64 // the newest event of each session
	published atomic.Int64
	stored    atomic.Int64
	got       [loadSubscribers]atomic.Int64 // each one's newest event
	delivered atomic.Int64

	mu    sync.Mutex
	wrong []string
	total int // of what is wrong
}

func (l *load) session(i int) string { return l.name + "-" + strconv.Itoa(i%loadSessions) }

// startLoad returns when every subscriber is connected.
func startLoad(t *testing.T, name, url string, trust *tls.Config) *load {
	t.Helper()
	l := &load{
		t: t, name: name, url: url, outcomes: make(chan *rejoin.Result, loadWaiting),
		// Each subscriber has a connection of its own, and a new one whenever it comes back.
		transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true},
	}
	l.publisher = must.Value(rejoin.NewPublisher(rejoin.PublisherConfig{
		URL: url, MaxRetry: time.Second, MaxRequests: loadSessions, AnswerTimeout: 10 * time.Second,
		MaxBufferedMessages: loadWaiting, MaxBufferedBytes: 1 << 30,
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true}},
	}))(t)
	var publishing context.Context
	l.ctx, l.end = context.WithCancel(context.Background())
	publishing, l.stop = context.WithCancel(l.ctx)
	for i := range loadSubscribers {
		l.subscribing.Go(func() { l.subscribe(i) })
	}
	l.begun = time.Now()
	l.publishing.Go(func() { l.publish(publishing) })
	l.publishing.Go(l.confirm)
	t.Cleanup(func() {
		l.stop()
		l.end()
		l.publishing.Wait()
		l.subscribing.Wait()
		_ = l.publisher.Close(l.ctx) // it was flushed before, or the test has failed
	})
	l.flows("the start")
	return l
}

// publish ends with ctx. What the cluster did not take for a while follows at once, so
// that the rate is the given one over any longer time.
func (l *load) publish(ctx context.Context) {
	defer close(l.outcomes)
	const pace = 10 * time.Millisecond
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for due := int64(time.Since(l.begun).Seconds() * *loadRate); l.published.Load() < due; {
			i := int(l.published.Load() % loadSessions)
			n := int(l.numbers[i].Load() + 1)
			result, err := l.publisher.Publish(ctx, rejoin.Message{Session: l.session(i), Stream: loadStream, Data: []byte(numbered(n))})
			if err != nil {
				if ctx.Err() == nil {
					l.fail("event %d of session %d: %v", n, i, err)
				}
				return
			}
			l.numbers[i].Add(1)
			l.published.Add(1)
			l.outcomes <- result
		}
	}
}

func (l *load) confirm() {
	for result := range l.outcomes {
		if _, err := result.Wait(l.ctx); err == nil {
			l.stored.Add(1)
		} else if l.ctx.Err() == nil {
			l.fail("an event was not stored: %v", err)
		}
	}
}

// subscribe checks what comes to a subscriber.
func (l *load) subscribe(i int) {
	subscriber, err := rejoin.NewSubscriber(rejoin.SubscriberConfig{
		URL: l.url, Session: l.session(i), Stream: loadStream,
		Retry: 100 * time.Millisecond, MaxRetry: time.Second, HTTPClient: &http.Client{Transport: l.transport},
	})
	if err != nil {
		l.fail("%v", err)
		return
	}
	for e, err := range subscriber.Events(l.ctx) {
		if l.ctx.Err() != nil {
			return
		}
		if err != nil {
			l.fail("subscriber %d: %v", i, err)
			return
		}
		if e.Gap != nil {
			l.fail("subscriber %d receives a gap after %d: %+v", i, l.got[i].Load(), *e.Gap)
			continue
		}
		l.take(i, e)
	}
}

func (l *load) take(i int, e rejoin.Event) {
	var m struct{ Params struct{ N int64 } }
	if err := json.Unmarshal(e.Message, &m); err != nil {
		l.fail("subscriber %d: %v", i, err)
		return
	}
	if has := l.got[i].Load(); m.Params.N != has+1 {
		l.fail("subscriber %d: event %d came after %d as %s", i, m.Params.N, has, e.ID)
	}
	l.got[i].Store(m.Params.N)
	l.delivered.Add(1)
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total++; len(l.wrong) < loadWrong {
		l.wrong = append(l.wrong, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// check fails the test when anything was wrong so far.
func (l *load) check(when string) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total > 0 {
		l.t.Fatalf("after %s %d things are wrong: %q", when, l.total, l.wrong)
	}
}

// flows waits until all that has been published by now has come to every subscriber, and
// returns how long that took.
func (l *load) flows(when string) time.Duration {
	l.t.Helper()
	begun := time.Now()
	var want [loadSessions]int64
	for i := range want {
		want[i] = l.numbers[i].Load() + 1
	}
	waittest.Value(l.t, "all events are delivered after "+when+"; published, stored, delivered",
		func() [3]int64 { return [...]int64{l.published.Load(), l.stored.Load(), l.delivered.Load()} },
		func([3]int64) bool { l.check(when); return l.have(&want) })
	l.check(when)
	return time.Since(begun).Round(10 * time.Millisecond)
}

func (l *load) have(want *[loadSessions]int64) bool {
	for i := range l.got {
		if l.got[i].Load() < want[i%loadSessions] {
			return false
		}
	}
	return true
}

// finish publishes nothing more and checks that everybody has everything.
func (l *load) finish() {
	l.t.Helper()
	l.stop()
	l.publishing.Wait()
	took := time.Since(l.begun)
	ctx, cancel := context.WithTimeout(l.ctx, waittest.Timeout)
	defer cancel()
	if err := l.publisher.Close(ctx); err != nil && !errors.Is(err, rejoin.ErrClosed) {
		l.t.Error(err)
	}
	var want [loadSessions]int64
	delivered := int64(0)
	for i := range want {
		want[i] = l.numbers[i].Load()
		delivered += want[i] * loadSubscribers / loadSessions
	}
	waittest.Until(l.t, "everybody has everything", func() bool { return l.have(&want) })
	l.end()
	l.subscribing.Wait()
	l.check("all")
	if l.stored.Load() != l.published.Load() || l.delivered.Load() != delivered {
		l.t.Errorf("of %d events %d are stored; of %d deliveries there were %d", l.published.Load(), l.stored.Load(), delivered, l.delivered.Load())
	}
	l.t.Logf("%d events in %s, %d deliveries, none lost, none twice and all in order", l.published.Load(), took.Round(time.Second), l.delivered.Load())
}
