package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// Announce stores a trim, if the newest one of its stream, or of its life, lies at follows; 0 for
// none. So a janitor with an older ledger than another one hides no trim that the other has announced.
// Errors are those of [Log.Publish], or wrap [ErrConflict] when another trim is there.
// Only the acting janitor calls it.
func (l *Log) Announce(ctx context.Context, t Trim, follows uint64) (Ack, error) {
	p := l.Partition(t.Session)
	msg := nats.NewMsg(event.Subject{Partition: p, Session: t.Session, Life: t.Life, Stream: t.Stream, Kind: event.Trim}.String())
	msg.Header.Set(headerUpTo, strconv.FormatUint(t.UpTo, 10))
	msg.Header.Set(headerReason, string(t.Reason))
	if len(t.Listed) > 0 {
		msg.Header.Set(headerListed, formatList(t.Listed))
	}
	if t.Forgotten {
		msg.Header.Set(headerForgotten, "1")
	}
	if t.Generation != "" {
		msg.Header.Set(headerGeneration, t.Generation)
	}
	return l.storeAfter(ctx, p, msg, follows)
}

// Rewrite stores the control entry at a sequence again, so that the entries below may be removed.
// An opening is stored only while it is the newest of its name; otherwise the error wraps [ErrConflict].
// c is nil but for births. Other errors are those of [Log.Publish], or for an opening wrap [ErrNotFound]. Only
// the acting janitor calls it.
func (l *Log) Rewrite(ctx context.Context, s event.Subject, sequence uint64, c *BirthCopy) (Ack, error) {
	msg := nats.NewMsg(s.String())
	if c != nil {
		msg.Header.Set(headerNewest, strconv.FormatUint(c.Newest, 10))
		msg.Header.Set(headerNewestRemoved, strconv.FormatUint(c.NewestRemoved, 10))
		msg.Header.Set(headerThrough, strconv.FormatUint(c.Through, 10))
		msg.Header.Set(headerGeneration, c.Generation)
	}
	if s.Kind == event.Open || s.Kind == event.End {
		msg.Header.Set(headerAgain, "1")
		there, err := l.get(ctx, s.Partition, sequence)
		switch {
		case err == nil:
			msg.Data = there.Data
			for name, values := range there.Header { // headers of a later version too
				if strings.HasPrefix(name, headerPrefix) {
					msg.Header[name] = values
				}
			}
			setBegan(msg, beganIn(there.Header, sequence))
		case s.Kind == event.Open || !errors.Is(err, ErrNotFound): // an end that is damaged is still one
			return Ack{}, err
		}
	}
	if s.Kind == event.Open {
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(sequence, 10))
	}
	return l.publish(ctx, s.Partition, msg)
}

// Delete removes the entry at a sequence. An entry that does not exist any more is
// no error. Errors wrap [ErrUnavailable].
func (l *Log) Delete(ctx context.Context, p int, sequence uint64) error {
	err := l.stream(p).DeleteMsg(ctx, sequence)
	if err == nil {
		return nil
	}
	// The client keeps only the text of the server's answer, which depends on the
	// entries that were there before. So ask.
	if _, getErr := l.get(ctx, p, sequence); errors.Is(getErr, ErrNotFound) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Purge removes all entries before a sequence. In a cluster an entry announces the purge: a server may have removed
// the entries, so that reads of it lack them, before the leader does and shows it. Errors are those of [Log.Publish],
// wrap [ErrNotFound], or [ErrConflict] when another janitor has announced a purge meanwhile. Only the acting janitor
// calls it.
func (l *Log) Purge(ctx context.Context, p int, before uint64) error {
	if l.Clustered() {
		upTo, sequence, err := l.announcedFloor(ctx, p)
		if err == nil && upTo < before-1 { // a lower one would hide the one that exists
			msg := nats.NewMsg(event.FloorSubject(p))
			msg.Header.Set(headerUpTo, strconv.FormatUint(before-1, 10))
			_, err = l.storeAfter(ctx, p, msg, sequence)
		}
		if err != nil {
			return err
		}
	}
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	return apiError(l.stream(p).Purge(ctx, jetstream.WithPurgeSequence(before)))
}

// announcedFloor returns the sequence up to which an entry has announced a purge of a partition, and the sequence of
// that entry; 0 for none. Errors wrap [ErrUnavailable].
func (l *Log) announcedFloor(ctx context.Context, p int) (upTo, sequence uint64, err error) {
	msg, err := l.newest(ctx, p, event.FloorSubject(p))
	if err != nil || msg == nil {
		return 0, 0, err
	}
	e := entryFromRaw(msg, p, len(l.parts))
	return e.PurgedTo, e.Sequence, nil
}
