package eventlog

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

func TestPublishError_Sentinels(t *testing.T) {
	api := func(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 503, ErrorCode: code} }
	fence := func(code jetstream.ErrorCode, description string) error {
		return &jetstream.APIError{Code: 400, ErrorCode: code, Description: description}
	}
	tests := map[string]struct {
		err          error
		publish, api error // nil: none of ours, the error as it is
	}{
		"stream not found":       {jetstream.ErrStreamNotFound, ErrUnavailable, ErrNotFound},
		"message not found":      {jetstream.ErrMsgNotFound, ErrUnavailable, ErrNotFound},
		"consumer not found":     {jetstream.ErrConsumerNotFound, ErrUnavailable, ErrNotFound},
		"account resources":      {api(10002), ErrFull, ErrFull},
		"server resources":       {api(10023), ErrFull, ErrFull},
		"memory":                 {api(10028), ErrFull, ErrFull},
		"storage":                {api(10047), ErrFull, ErrFull},
		"store failed":           {api(10077), ErrFull, ErrFull},
		"message too large":      {api(10054), ErrTooLarge, nil},
		"in process":             {api(10158), ErrUnknown, nil},
		"fenced":                 {fence(10071, "wrong last sequence: 20"), ErrClosed, nil},
		"fence not looked up":    {fence(10071, "wrong last sequence: 0"), ErrUnavailable, nil},
		"fence in process":       {fence(10164, "wrong last sequence"), ErrUnavailable, nil},
		"no leader":              {api(10008), ErrUnavailable, ErrUnavailable},
		"payload":                {nats.ErrMaxPayload, ErrTooLarge, ErrUnavailable},
		"no responders":          {jetstream.ErrNoStreamResponse, ErrUnavailable, ErrUnavailable},
		"no buffer":              {nats.ErrReconnectBufExceeded, ErrUnavailable, ErrUnavailable},
		"reconnecting":           {nats.ErrConnectionReconnecting, ErrUnavailable, ErrUnavailable},
		"closed while it waited": {nats.ErrConnectionClosed, ErrUnknown, ErrUnavailable},
		"time-out":               {nats.ErrTimeout, ErrUnknown, ErrUnavailable},
		"deadline":               {context.DeadlineExceeded, ErrUnknown, ErrUnavailable},
		"cancelled":              {context.Canceled, ErrUnknown, ErrUnavailable},
		"broken pipe":            {io.ErrClosedPipe, ErrUnknown, ErrUnavailable},
		"an answer that is none": {jetstream.ErrInvalidJSAck, ErrUnknown, ErrUnavailable},
	}
	all := []error{ErrNotFound, ErrMismatch, ErrInvalidSettings, ErrUnavailable, ErrUnknown, ErrFull, ErrTooLarge, ErrClosed, ErrConflict}
	check := func(name string, got, cause, want error) {
		if !errors.Is(got, cause) {
			t.Errorf("%s: %v has lost its cause", name, got)
		}
		for _, ours := range all {
			if errors.Is(got, ours) != (ours == want) { //nolint:errorlint // sentinels themselves
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	}
	for name, tt := range tests {
		check("publish: "+name, publishError(tt.err), tt.err, tt.publish)
		check("api: "+name, apiError(tt.err), tt.err, tt.api)
	}
	if apiError(nil) != nil {
		t.Error("no error is one")
	}
}

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

// An event that waits when its context ends is not sent, nor is any event after it.
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

// An event that waits in a gather when its context ends is not sent, and is not held until those before it are stored.
func TestGather_ContextOfOneThatWaitsEnds(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	l, g := new(Log), new(gather)
	var all []*Publishing
	for range 2 {
		w := &Publishing{queued: &queued{done: make(chan struct{})}}
		l.gathers.all = map[event.Subject]*gather{w.queued.event.fence(w.p): g} // under way
		l.join(w)
		all = append(all, w)
	}
	if _, err := all[0].Wait(ended); !errors.Is(err, ErrUnavailable) || len(g.waiting) != 1 || g.waiting[0] != all[1] {
		t.Errorf("%v; %d wait", err, len(g.waiting))
	}
}

// An event that was begun by itself and is stored in a batch, since the connection has just left a cluster,
// does not stay counted as in flight.
func TestSeries_SettledThoughStoredInABatch(t *testing.T) {
	s := &Series{unanswered: 1}
	w := &Publishing{queued: &queued{ack: Ack{Sequence: 7}, done: make(chan struct{})}, answered: s.answered}
	close(w.queued.done)
	if ack, err := w.Wait(t.Context()); err != nil || ack.Sequence != 7 || s.unanswered != 0 {
		t.Fatalf("%+v, %v; %d are under way", ack, err, s.unanswered)
	}
}
