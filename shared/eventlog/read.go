package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

// Query says which part of a partition to read.
type Query struct {
	// Session and Stream say whose events; an empty Stream means all of the
	// session's streams, and then the session's markers are read too.
	Session, Stream string
	// After and UpTo bound the sequences: After < sequence ≤ UpTo.
	After, UpTo uint64
	// MaxEvents and MaxBytes bound the page; both at least 1.
	MaxEvents, MaxBytes int
}

// Page is what a read found.
type Page struct {
	// Entries in order of sequence, valid ones only.
	Entries []Entry
	// Through is the sequence up to which there is no more than Entries.
	Through uint64
}

// readIdle is how long the server keeps the consumer of a read whose edge died.
const readIdle = 30 * time.Second

// Read reads a page with a short-lived ordered consumer, by start sequence, and
// deletes the consumer by name. It says nothing about events that were removed:
// they are left out without a word. Errors wrap [ErrUnavailable] or ctx's error.
func (l *Log) Read(ctx context.Context, q Query) (page Page, err error) {
	if q.After >= q.UpTo {
		return Page{Through: q.UpTo}, nil
	}
	p := l.Partition(q.Session)
	filter := event.Subject{Partition: p, Session: q.Session, Stream: q.Stream}.String()
	if q.Stream == "" {
		filter += "*"
	}
	outer := ctx
	ctx, cancel := l.request(ctx)
	defer cancel()
	defer func() {
		if err != nil {
			page, err = Page{}, readError(outer, err)
		}
	}()
	consumer, err := l.js.OrderedConsumer(ctx, streamName(p), jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{filter},
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       q.After + 1,
		InactiveThreshold: readIdle,
		MaxResetAttempts:  1,
	})
	if err != nil {
		return Page{}, err
	}
	defer func() { l.deleteConsumer(p, consumer) }()
	if consumer.CachedInfo().NumPending == 0 {
		return Page{Through: q.UpTo}, nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(min(q.MaxEvents, 500)))
	if err != nil {
		return Page{}, err
	}
	defer messages.Stop()
	return l.collect(ctx, q, p, filter, messages)
}

// readPatience is how long a read waits for the next event before it asks whether
// there still is one: nobody says so when it was removed before it could be sent.
const readPatience = 250 * time.Millisecond

func (l *Log) collect(ctx context.Context, q Query, p int, filter string, messages jetstream.MessagesContext) (Page, error) {
	page := Page{Through: q.After}
	for bytes := 0; ; {
		msg, err := next(ctx, messages)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			left, err := l.get(ctx, p, page.Through+1, jetstream.WithGetMsgSubject(filter))
			if errors.Is(err, ErrNotFound) || err == nil && left.Sequence > q.UpTo {
				page.Through = q.UpTo
				return page, nil
			}
			if err != nil {
				return Page{}, err
			}
			continue
		}
		if err != nil {
			return Page{}, err
		}
		e, err := l.entryFrom(msg, p, false)
		if err != nil {
			return Page{}, err
		}
		if e.Sequence > q.UpTo {
			page.Through = q.UpTo
			return page, nil
		}
		page.Through = e.Sequence
		if e.Valid {
			page.Entries = append(page.Entries, e)
			bytes += e.Size
		}
		if e.Pending == 0 {
			page.Through = q.UpTo
			return page, nil
		}
		if len(page.Entries) >= q.MaxEvents || bytes >= q.MaxBytes {
			return page, nil
		}
	}
}

func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

func readError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e := apiError(err); e != nil && !errors.Is(e, ErrUnavailable) {
		return errors.Join(ErrUnavailable, e)
	}
	return apiError(err)
}

// deleteConsumer removes an ordered consumer from the server: stopping one leaves
// it there until its inactivity threshold.
func (l *Log) deleteConsumer(p int, c jetstream.Consumer) {
	info := c.CachedInfo()
	if info == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	ctx, done := l.request(ctx)
	defer done()
	err := l.js.DeleteConsumer(ctx, streamName(p), info.Name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		l.log.Debug("a consumer is left to the server", "partition", p, "consumer", info.Name, "error", err)
	}
}
