package eventlog

import (
	"context"
	"testing"
)

// An event that is acknowledged while its context ends is stored, and the series continues.
func TestSeries_StoredAsTheContextEnds(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // either is seen first
		s := new(Series)
		q := &queued{giveUp: s.giveUp, ack: Ack{Sequence: 7}, done: make(chan struct{})}
		close(q.done)
		if ack, err := q.wait(ended); err != nil || ack.Sequence != 7 || s.failed != nil {
			t.Fatalf("%+v, %v; the series: %v", ack, err, s.failed)
		}
	}
}

// One that waits when its context ends is not sent, and nothing behind it is.
func TestSeries_ContextOfOneThatWaitsEnds(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s := new(Series)
	for range 2 {
		s.waiting = append(s.waiting, &Publishing{queued: &queued{giveUp: s.giveUp, done: make(chan struct{})}})
	}
	for _, w := range s.waiting {
		if _, err := w.queued.wait(ended); err == nil || s.failed == nil || len(s.waiting) > 0 {
			t.Fatalf("%v; the series: %v, with %d waiting", err, s.failed, len(s.waiting))
		}
	}
}

// One that was begun by itself and is stored in a batch, since the connection has just left a cluster,
// does not stay under way.
func TestSeries_SettledThoughStoredInABatch(t *testing.T) {
	s := &Series{unanswered: 1}
	w := &Publishing{queued: &queued{ack: Ack{Sequence: 7}, done: make(chan struct{})}, answered: s.answered}
	close(w.queued.done)
	if ack, err := w.Wait(t.Context()); err != nil || ack.Sequence != 7 || s.unanswered != 0 {
		t.Fatalf("%+v, %v; %d are under way", ack, err, s.unanswered)
	}
}
