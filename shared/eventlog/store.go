package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// gathers are the events of different publishers that wait for one fence. In a cluster the leader
// lets one message or batch with a fence be on its way, and refuses the next: so what comes
// meanwhile waits here, and follows in the next atomic batch, in the order in which it came. It
// is safe for concurrent use.
type gathers struct {
	mu  sync.Mutex
	all map[event.Subject]*gather // those under way, by their fence
}

// gather is what waits for one fence.
type gather struct{ waiting []*Publishing }

// join has an event stored with those that wait for the same fence.
func (l *Log) join(w *Publishing) {
	fence := w.queued.event.fence(w.p)
	l.gathers.mu.Lock()
	defer l.gathers.mu.Unlock()
	if g := l.gathers.all[fence]; g != nil {
		g.waiting = append(g.waiting, w)
		return
	}
	if l.gathers.all == nil {
		l.gathers.all = map[event.Subject]*gather{}
	}
	g := &gather{waiting: []*Publishing{w}}
	l.gathers.all[fence] = g
	l.watched.Go(func() { l.storeGathered(fence, g) })
}

// storeGathered stores what waits for a fence until nothing does.
func (l *Log) storeGathered(fence event.Subject, g *gather) {
	for {
		l.gathers.mu.Lock()
		if len(g.waiting) == 0 {
			delete(l.gathers.all, fence)
			l.gathers.mu.Unlock()
			return
		}
		g.waiting = dropGivenUp(g.waiting)
		n := together(g.waiting)
		all := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		l.gathers.mu.Unlock()
		l.storeApart(all)
	}
}

// dropGivenUp removes those whose callers have given up. They are not sent.
func dropGivenUp(waiting []*Publishing) (left []*Publishing) {
	for _, w := range waiting {
		if err := w.queued.ctx.Err(); err != nil {
			w.queued.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
			close(w.queued.done)
		} else {
			left = append(left, w)
		}
	}
	return left
}

// storeApart stores events of which none depends on another, and sets what became of each.
func (l *Log) storeApart(all []*Publishing) {
	settled := false
	if len(all) > 1 {
		settled, _ = l.storeTogether(context.WithoutCancel(all[0].queued.ctx), all)
	}
	for _, w := range all {
		if !settled {
			w.queued.ack, w.queued.err = l.publish(w.queued.ctx, w.p, w.queued.event.message(w.p))
		}
		close(w.queued.done)
	}
}

// together returns how many of those that wait are sent at once.
func together(waiting []*Publishing) (n int) {
	if len(waiting) == 0 {
		return 0
	}
	n, bytes := 1, len(waiting[0].queued.event.Data)
	for ; n < min(len(waiting), maxTogether); n++ {
		if bytes += len(waiting[n].queued.event.Data); bytes > maxTogetherBytes {
			break
		}
	}
	return n
}

// store stores events of one partition in their order, and sets what became of each. It
// continues after those alone that are too large.
func (l *Log) store(all []*Publishing) {
	together := len(all) > 1
	for tries := 0; len(all) > 0; tries++ {
		if together && tries < maxTries {
			settled, repeated := l.storeTogether(all[0].queued.ctx, all)
			if settled {
				return
			}
			// A repeated request repeats first what was stored of it.
			together = repeated
		}
		all = l.storeSingly(all, together && tries < maxTries)
	}
}

// storeSingly stores events one after the other, while they are duplicates or to the end.
// It returns what is left.
func (l *Log) storeSingly(all []*Publishing, duplicates bool) []*Publishing {
	for i, w := range all {
		w.queued.ack, w.queued.err = l.publish(w.queued.ctx, w.p, w.queued.event.message(w.p))
		if err := w.queued.err; ends(err) {
			for _, later := range all[i+1:] {
				later.queued.err = notSent(err)
			}
			return nil
		}
		if duplicates && !w.queued.ack.Duplicate {
			return all[i+1:]
		}
	}
	return nil
}

// errorRepeated is JetStream's error for an atomic batch with an event that it has.
const errorRepeated jetstream.ErrorCode = 10201

// storeTogether stores events as an atomic batch. Unless settled, JetStream has refused
// it as a whole, and none is stored; repeated says that it has some of them already.
func (l *Log) storeTogether(ctx context.Context, all []*Publishing) (settled, repeated bool) {
	p := all[0].p
	if !l.batches(p) {
		return false, false
	}
	bounded, done := context.WithTimeout(ctx, requestTimeout) // the answer may be lost though the connection is not
	defer done()
	ctx, cancel := l.request(bounded)
	defer cancel()
	ack, err := l.publishTogether(ctx, all)
	for fenceBusy(err) && pause(ctx) {
		ack, err = l.publishTogether(ctx, all)
	}
	if api, refused := errors.AsType[*jetstream.APIError](err); refused || errors.Is(err, nats.ErrMaxPayload) {
		return false, refused && api.ErrorCode == errorRepeated
	}
	for i, w := range all {
		if err != nil {
			w.queued.err = publishError(err)
			continue
		}
		w.queued.ack = Ack{Partition: p, Sequence: ack.Sequence - uint64(len(all)-1-i)} //nolint:gosec // not negative
	}
	return true, false
}

// batches reports whether a partition takes atomic batches and is better for them: without
// replicas a batch is written twice.
func (l *Log) batches(p int) bool {
	state, _ := l.State(p)
	return state.atomic && state.Limits.Replicas > 1
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

// A fence is a subject that must have no entry: JetStream checks that atomically with the
// store (headers Nats-Expected-Last-Subject-Sequence and …-Subject). It names one literal
// subject, since in a cluster the leader knows what it has proposed and not yet applied by
// exact subject only, and it expects no entry, since to look at one in an old block would
// load that block with every publish.

// fence returns the subject that must be empty for the event to be stored.
func (e Event) fence(p int) event.Subject {
	if e.Sole {
		return event.Subject{Partition: p, Session: e.Session, Life: e.Life, Kind: event.Seal}
	}
	return event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream, Kind: event.End}
}

func setFence(msg *nats.Msg, on []string) {
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = noEntry
	msg.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = on
}

// noEntry is the sequence that a subject without an entry has.
var noEntry = []string{"0"}

// JetStream's errors for a message with an expected sequence.
const (
	errorFence     jetstream.ErrorCode = 10071 // the subject has an entry
	errorFenceBusy jetstream.ErrorCode = 10164 // in a cluster: another message with the fence is on its way
)

// fenced reports whether JetStream refused a message because its fence has an entry. A
// look-up that failed looks the same, but names sequence 0, and says nothing
// (docs/upstream/0016).
func fenced(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errorFence && !strings.HasSuffix(api.Description, ": 0")
}

// fenceBusy reports whether JetStream refused a message that may be sent again at once: it
// was surely not stored (docs/upstream/0015).
func fenceBusy(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errorFenceBusy
}

// longestPause is how long a message waits at most before it is sent again: about as long
// as a majority takes to store the one before it.
const longestPause = 4 * time.Millisecond

// pause waits for a moment, and reports whether ctx is not done.
func pause(ctx context.Context) bool {
	return natsconn.Pause(ctx, rand.N(longestPause)) //nolint:gosec // no secret
}

const (
	// maxTogether is how many events of a series are stored at once, and
	// maxTogetherBytes how many bytes of theirs; one may always. nats-server takes
	// 1,000 events.
	maxTogether      = 500
	maxTogetherBytes = 1 << 20
	// maxTries is how often what is left of them is tried at once.
	maxTries = 3
)

// Series is events of one session that are stored in the order in which they are begun, as
// far as they are stored.
//
// What is on its way when the connection to NATS is lost may be lost too, and what is sent
// on the next one would overtake it: so nothing is begun there before all is settled that
// was begun on another. In a cluster the same holds for the leader of a partition, of
// whose changes are heard too late. Nothing is sent there before all that was sent
// earlier is acknowledged, and what waits meanwhile follows together, in an atomic batch
// (nats-server's ADR-50), of which all is stored or nothing.
//
// After an event that is not stored, or of which it is not known, what waits behind it is
// not stored and fails with [ErrSeriesFailed]; so does what is begun later. It continues
// behind those alone that are too large.
//
// A Series belongs to one goroutine, which publishes its events. Another one calls Wait for
// each, in any order: PublishAsync may wait for that.
type Series struct {
	log *Log

	of routed // what to is for; both belong to who begins events
	to route

	mu     sync.Mutex
	failed error // what ended the series

	// Of what is sent at once:
	on        uint64        // the connection that events are begun on
	unsettled int           // of them
	quiet     chan struct{} // closed when unsettled is 0 again; nil unless PublishAsync waits for that

	// Of what is sent together:
	waiting []*Publishing
	sending bool
}

// queued is what a [Publishing] has when its series, or a gather, sends it.
type queued struct {
	series *Series         // nil in a gather
	ctx    context.Context //nolint:containedctx // of PublishAsync: it bounds the acknowledgement
	event  Event
	done   chan struct{} // closed when ack and err are set
	ack    Ack
	err    error
}

// ends reports whether what comes behind an event with this error is not sent.
func ends(err error) bool { return err != nil && !errors.Is(err, ErrTooLarge) }

// notSent is what becomes of an event behind one that failed. It is known not to be
// stored, whatever is known of the other.
func notSent(err error) error {
	return fmt.Errorf("%w: %w: %s", ErrUnavailable, ErrSeriesFailed, err.Error())
}

// wait is [Publishing.Wait] for what a series sends.
func (q *queued) wait(ctx context.Context) (Ack, error) {
	select {
	case <-q.done:
		return q.ack, q.err
	case <-ctx.Done():
	}
	if q.series != nil {
		q.series.giveUp(q, ctx.Err())
	}
	select {
	case <-q.done:
		return q.ack, q.err
	default:
		return Ack{}, publishError(ctx.Err())
	}
}

// The headers of an atomic batch (nats-server's ADR-50).
const (
	headerBatch       = "Nats-Batch-Id"
	headerBatchIndex  = "Nats-Batch-Sequence" // from 1
	headerBatchCommit = "Nats-Batch-Commit"
)
