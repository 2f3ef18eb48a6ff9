package window

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// maxTrails is how many events' trails a window has. An event whose trail was dropped
// is delivered without a span.
const maxTrails = 1024

// Trail is the trace of an event that is sampled. It is safe for concurrent use.
type Trail struct {
	sequence   uint64
	Publish    trace.SpanContext
	Subject    event.Subject
	Came       time.Time // when the window received the event
	Readers    int       // how many held its chains then
	Deliveries atomic.Int64
}

// trails are those of a window's newest sampled events, by ascending sequence.
type trails []*Trail

// add notes the trail of an event of a stream. Of too many it drops the oldest.
func (t *trails) add(e eventlog.Entry, stream *Chain) {
	if len(*t) == maxTrails {
		*t = slices.Delete(*t, 0, maxTrails/4) // not for each
	}
	*t = append(*t, &Trail{sequence: e.Sequence, Publish: e.Trace.Span(), Subject: e.Subject, Came: time.Now(), Readers: stream.readers + stream.flow.readers})
}

// of returns the trail of an event, nil when it was dropped.
func (t trails) of(sequence uint64) *Trail {
	i, ok := slices.BinarySearchFunc(t, sequence, func(t *Trail, sequence uint64) int { return cmp.Compare(t.sequence, sequence) })
	if !ok {
		return nil
	}
	return t[i]
}
