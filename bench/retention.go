package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

const (
	removedSessions = 1000
	removedEvents   = removedSessions * storedPerStream
	// removalGrace is how long the closed sessions stay, and publishing is measured.
	removalGrace  = 25 * time.Second
	removalRate   = 2000 // events/s
	removalBefore = 10 * time.Second
	removalWithin = 4 * time.Minute
)

func oneStreamSession(i int) string { return "alone" + strconv.Itoa(i) }

// oneLife is the life of the sessions of one stream.
const oneLife = "bench"

func oneStreamSubject(session string) string {
	return event.Subject{Partition: event.Partition(session, partitions), Session: session, Life: oneLife, Stream: "main"}.String()
}

// openOneStream opens a session of one stream, as ingest would.
func (r *rejoin) openOneStream(ctx context.Context, session string) error {
	s := event.Subject{Partition: event.Partition(session, partitions), Session: session, Kind: event.Open}
	_, err := r.store(ctx, &nats.Msg{Subject: s.String(), Data: []byte(`{"life":"` + oneLife + `"}`)})
	return err
}

// removal measures what the removal of closed sessions costs others: 1,000,000 events
// in 10,000 sessions of a stream each, interleaved; 1,000 of the sessions are closed,
// and their events removed, while another client publishes 2,000 events/s to others.
func removal(ctx context.Context, p *programs) (figures, error) {
	var f figures
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	r, err := startRejoin(ctx, p, "", "--closed-grace="+removalGrace.String())
	if err != nil {
		return f, err
	}
	defer r.close()
	for i := range storedStreams {
		if err := r.openOneStream(ctx, oneStreamSession(i)); err != nil {
			return f, err
		}
	}
	for n := range storedPerStream {
		for i := range storedStreams {
			if _, err := r.store(ctx, &nats.Msg{Subject: oneStreamSubject(oneStreamSession(i)), Data: varied(n, i)}); err != nil {
				return f, err
			}
		}
	}
	if err := r.flush(ctx); err != nil {
		return f, err
	}
	if err := quiet(ctx, r.pids()); err != nil {
		return f, err
	}
	if err := closeSessions(ctx, r); err != nil {
		return f, err
	}
	pace := startPacer(ctx, r.logPublisher, removalRate, func(n int) string { return oneStreamSubject("live" + strconv.Itoa(n%1000)) })
	defer func() { _ = pace.stop() }() // asked for below
	if err := pause(ctx, removalBefore); err != nil {
		return f, err
	}
	before := pace.take()
	if err := r.removed(ctx, 1); err != nil {
		return f, err
	}
	pace.take()
	start := time.Now()
	if err := r.removed(ctx, removedEvents); err != nil {
		return f, err
	}
	f.add("seconds", time.Since(start).Seconds())
	during := pace.take()
	if err := pace.stop(); err != nil {
		return f, err
	}
	f.addHistogram("before_", before)
	f.addHistogram("during_", during)
	f.ratio("p99_vs_before", "during_p99_ms", "before_p99_ms")
	return f, nil
}

// closeSessions closes every tenth of the sessions.
func closeSessions(ctx context.Context, r *rejoin) error {
	errs := make([]error, removedSessions)
	var all sync.WaitGroup
	places := make(chan struct{}, 250)
	for i := range removedSessions {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			req, err := http.NewRequestWithContext(ctx, http.MethodDelete, r.edge+"/v1/sessions/"+oneStreamSession(i*storedStreams/removedSessions), http.NoBody)
			if err != nil {
				errs[i] = err
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				errs[i] = err
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusNoContent {
				errs[i] = fmt.Errorf("closing a session: %s", resp.Status)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// removed waits until the janitor has deleted so many entries, which it does some time after
// it has announced that.
func (r *rejoin) removed(ctx context.Context, entries float64) error {
	ctx, cancel := context.WithTimeout(ctx, removalWithin)
	defer cancel()
	for {
		n, err := r.metric(ctx, "rejoin_janitor_deleted_entries_total")
		if err != nil {
			return err
		}
		if n >= entries {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%.0f entries are removed, want %.0f: %w", n, entries, err)
		}
	}
}

// pacer publishes events at a steady rate, and measures how long each waits for its
// acknowledgement.
type pacer struct {
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu   sync.Mutex
	acks *histogram
	err  error
}

func startPacer(ctx context.Context, to *logPublisher, perSecond int, subject func(n int) string) *pacer {
	ctx, cancel := context.WithCancel(ctx)
	p := &pacer{cancel: cancel, acks: &histogram{}}
	p.all.Go(func() {
		start := time.Now()
		for n := 0; ctx.Err() == nil; n++ {
			at := start.Add(time.Duration(n) * time.Second / time.Duration(perSecond))
			if wait := time.Until(at); wait > 0 {
				time.Sleep(wait)
			}
			sent := time.Now()
			ack, err := to.store(ctx, &nats.Msg{Subject: subject(n), Data: stamped(n, messageBytes)})
			if err != nil {
				p.fail(ctx, err)
				return
			}
			p.all.Go(func() { p.wait(ctx, ack, sent) })
		}
	})
	return p
}

func (p *pacer) wait(ctx context.Context, ack jetstream.PubAckFuture, sent time.Time) {
	select {
	case <-ack.Ok():
		took := time.Since(sent)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acks.add(took.Nanoseconds())
	case err := <-ack.Err():
		p.fail(ctx, err)
	case <-ctx.Done():
	}
}

func (p *pacer) fail(ctx context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil {
		p.err = errors.Join(p.err, err)
	}
}

// take returns the latencies since it was last called.
func (p *pacer) take() *histogram {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.acks
	p.acks = &histogram{}
	return h
}

// stop ends it, and returns what went wrong.
func (p *pacer) stop() error {
	p.cancel()
	p.all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
