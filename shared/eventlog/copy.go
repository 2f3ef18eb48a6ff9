package eventlog

import (
	"context"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

// Headers of a birth, and of an opening, that was written again.
const (
	headerAgain   = "Rejoin-Again"
	headerLast    = "Rejoin-Last"
	headerTrimmed = "Rejoin-Trimmed"
	headerThrough = "Rejoin-Through"
	headerChanges = "Rejoin-Changes" // of an opening: see [Opening.Changes]
)

// Copy is what a birth says of its stream when it is written again. It lets a cursor of a quiet
// stream be complete though everything around it has expired.
type Copy struct {
	// Last is the sequence of the stream's newest event; 0 when there was none.
	Last uint64
	// Removed is the sequence of the stream's newest event that was removed; 0 for none.
	Removed uint64
	// Through is the sequence up to which this holds; 0 says that it may not be all.
	Through uint64
}

// Rewrite stores a control entry again, which lies at a sequence, so that what lies below may
// be removed: an opening while it is the newest of its name, which the error [ErrClosed] denies.
// c is nil but for births. Other errors are those of [Log.Publish], or wrap [ErrNotFound]. Only
// the acting janitor calls it.
func (l *Log) Rewrite(ctx context.Context, s event.Subject, sequence uint64, c *Copy) (Ack, error) {
	msg := nats.NewMsg(s.String())
	if c != nil {
		msg.Header.Set(headerLast, strconv.FormatUint(c.Last, 10))
		msg.Header.Set(headerTrimmed, strconv.FormatUint(c.Removed, 10))
		msg.Header.Set(headerThrough, strconv.FormatUint(c.Through, 10))
	}
	if _, err := l.settle(ctx, s.Partition); err != nil {
		return Ack{}, err
	}
	if s.Kind == event.Open {
		there, err := l.get(ctx, s.Partition, sequence)
		if err != nil {
			return Ack{}, err
		}
		msg.Data = there.Data
		msg.Header.Set(headerAgain, "1")
		if changes := there.Header.Get(headerChanges); changes != "" {
			msg.Header.Set(headerChanges, changes)
		}
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(sequence, 10))
	}
	return l.publish(ctx, s.Partition, msg)
}

// copyIn reads the headers of a birth; nil when it was not written again.
func copyIn(h nats.Header) *Copy {
	var c Copy
	for name, to := range map[string]*uint64{headerLast: &c.Last, headerTrimmed: &c.Removed, headerThrough: &c.Through} {
		n, err := strconv.ParseUint(h.Get(name), 10, 64)
		if err != nil {
			return nil
		}
		*to = n
	}
	return &c
}
