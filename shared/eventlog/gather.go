package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// gathers are the events of different publishers that wait for one fence. In a cluster the leader
// lets one message or batch with a fence be in flight, and refuses the next: so the next events
// wait here, and follow in the next atomic batch, in the order in which they came. It
// is safe for concurrent use.
type gathers struct {
	mu  sync.Mutex
	all map[event.Subject]*gather // the active ones, by their fence
}

// gather holds the events that wait for one fence.
type gather struct{ waiting []*Publishing }

// queued is the part of a [Publishing] that a series or a gather sends.
type queued struct {
	giveUp func(*queued, error) // keeps it from being sent, if it still waits; nil when it has its outcome
	ctx    context.Context      //nolint:containedctx // of PublishAsync: it bounds the acknowledgement
	event  Event
	done   chan struct{} // closed when ack and err are set
	ack    Ack
	err    error
}

// wait is [Publishing.Wait] for an event that a series or a gather sends.
func (q *queued) wait(ctx context.Context) (Ack, error) {
	select {
	case <-q.done:
		return q.ack, q.err
	case <-ctx.Done():
	}
	if q.giveUp != nil {
		q.giveUp(q, ctx.Err())
	}
	select {
	case <-q.done:
		return q.ack, q.err
	default:
		return Ack{}, publishError(ctx.Err())
	}
}

// join adds an event to those that wait for the same fence.
func (l *Log) join(w *Publishing) {
	fence := w.queued.event.fence(w.p)
	l.gathers.mu.Lock()
	defer l.gathers.mu.Unlock()
	g, ok := l.gathers.all[fence]
	if !ok {
		if l.gathers.all == nil {
			l.gathers.all = map[event.Subject]*gather{}
		}
		g = &gather{}
		l.gathers.all[fence] = g
		l.watched.Go(func() { l.storeGathered(fence, g) })
	}
	g.waiting = append(g.waiting, w)
	w.queued.giveUp = func(q *queued, err error) { l.gathers.remove(g, q, err) }
}

// remove removes an event whose caller has given up from the waiting ones. It is not sent.
func (a *gathers) remove(g *gather, q *queued, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(g.waiting, func(w *Publishing) bool { return w.queued == q }); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		q.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		close(q.done)
	}
}

// storeGathered stores the events that wait for a fence until none is left.
func (l *Log) storeGathered(fence event.Subject, g *gather) {
	for {
		l.gathers.mu.Lock()
		if len(g.waiting) == 0 {
			delete(l.gathers.all, fence)
			l.gathers.mu.Unlock()
			return
		}
		var all []*Publishing
		all, g.waiting = together(g.waiting)
		l.gathers.mu.Unlock()
		l.storeIndependent(all)
	}
}

// storeIndependent stores events of which none depends on another, and sets the outcome of each.
func (l *Log) storeIndependent(all []*Publishing) {
	decided := len(all) > 1 && l.storeTogether(context.WithoutCancel(all[0].queued.ctx), all)
	for _, w := range all {
		if !decided {
			w.queued.ack, w.queued.err = l.publish(w.queued.ctx, w.p, w.queued.event.message(w.p))
		}
		close(w.queued.done)
	}
}

// together splits the waiting events into those to send now and the others.
func together(waiting []*Publishing) (now, later []*Publishing) {
	n, bytes := 0, 0
	for ; n < min(len(waiting), maxTogether); n++ {
		if bytes += len(waiting[n].queued.event.Data); n > 0 && bytes > maxTogetherBytes {
			break
		}
	}
	return waiting[:n:n], waiting[n:]
}

// storeTogether stores events as an atomic batch. Unless decided, JetStream has refused it as a whole, for example
// since it has one of them already, and none is stored.
func (l *Log) storeTogether(ctx context.Context, all []*Publishing) (decided bool) {
	p := all[0].p
	if !l.batches(p) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout) // the answer may be lost though the connection is not
	defer cancel()
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	ack, err := l.publishTogether(ctx, all)
	for fenceBusy(err) && pause(ctx) {
		ack, err = l.publishTogether(ctx, all)
	}
	if natsconn.Code(err) != 0 || errors.Is(err, nats.ErrMaxPayload) {
		return false
	}
	for i, w := range all {
		if err != nil {
			w.queued.err = publishError(err)
			continue
		}
		w.queued.ack = Ack{Partition: p, Sequence: ack.Sequence - uint64(len(all)-1-i)} //nolint:gosec // not negative
	}
	return true
}

// batchAck is JetStream's answer to the last event of an atomic batch.
type batchAck struct {
	Stream   string              `json:"stream"`
	Sequence uint64              `json:"seq"` // the last event's; the others come right before it
	Batch    string              `json:"batch"`
	Count    int                 `json:"count"`
	Error    *jetstream.APIError `json:"error"`
}

func (l *Log) publishTogether(ctx context.Context, all []*Publishing) (ack batchAck, err error) {
	id := nuid.Next()
	message := func(i int) *nats.Msg {
		msg := all[i].queued.event.message(all[i].p)
		msg.Header.Set(headerBatch, id)
		msg.Header.Set(headerBatchIndex, strconv.Itoa(i+1))
		return msg
	}
	last := len(all) - 1
	for i := range last {
		if err := l.nc.PublishMsg(message(i)); err != nil {
			return ack, err
		}
	}
	commit := message(last)
	commit.Header.Set(headerBatchCommit, "1")
	answer, err := l.nc.RequestMsgWithContext(ctx, commit)
	if errors.Is(err, nats.ErrNoResponders) {
		err = jetstream.ErrNoStreamResponse
	}
	if err != nil {
		return ack, err
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return ack, err
	}
	if ack.Error != nil {
		return ack, ack.Error
	}
	if ack.Stream != streamName(all[0].p) || ack.Batch != id || ack.Count != len(all) {
		return ack, fmt.Errorf("%d events are acknowledged as %+v", len(all), ack)
	}
	return ack, nil
}

const (
	// maxTogether is how many events of a series are stored at once, and
	// maxTogetherBytes how many bytes of them; a single event may be larger.
	// nats-server takes 1,000 events.
	maxTogether      = 500
	maxTogetherBytes = 1 << 20
)

// The headers of an atomic batch (nats-server's ADR-50).
const (
	headerBatch       = "Nats-Batch-Id"
	headerBatchIndex  = "Nats-Batch-Sequence" // from 1
	headerBatchCommit = "Nats-Batch-Commit"
)
