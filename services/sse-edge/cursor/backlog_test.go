package cursor

import (
	"context"
	"errors"
	"testing"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// A scan that takes too long, or breaks, hands over the pages read so far: its readers continue where it ended.
// A reader whose cursor the scan has not passed gets the error.
func TestLogScan_HandsOverWhatItHasRead(t *testing.T) {
	quiet, busy := streamOf("quiet"), streamOf("busy")
	reads := map[string]*logRead{
		"quiet":       {at: quiet, after: 10, upTo: 100},
		"busy":        {at: busy, after: 10, upTo: 100},
		"at the end":  {at: quiet, after: 10, upTo: 15},
		"not reached": {at: busy, after: 20, upTo: 100},
	}
	s := logScan{backlog: &backlog{budget: 1 << 20}, byPlace: map[window.Place][]*logRead{}}
	for _, q := range reads {
		q.ctx, q.limit, q.done = t.Context(), ten, make(chan struct{})
		s.backlog.waiting = append(s.backlog.waiting, q)
	}
	s.position = s.join(0)
	for sequence := uint64(11); sequence <= 20; sequence++ {
		e := eventlog.Entry{Sequence: sequence, Valid: true, Subject: event.Subject{Session: "s", Stream: "other"}, Size: 1}
		if sequence == 12 || sequence == 18 {
			e.Subject.Stream = "busy"
		}
		s.take(e)
	}
	s.finish(20, context.DeadlineExceeded)
	for name, want := range map[string]struct {
		through uint64
		events  int
		err     error
	}{
		"quiet":       {20, 0, nil},
		"busy":        {20, 2, nil},
		"at the end":  {15, 0, nil},
		"not reached": {0, 0, context.DeadlineExceeded},
	} {
		q := reads[name]
		<-q.done
		if q.page.Through != want.through || len(q.page.Entries) != want.events || !errors.Is(q.err, want.err) {
			t.Errorf("%s: %d events to %d, %v", name, len(q.page.Entries), q.page.Through, q.err)
		}
	}
}
