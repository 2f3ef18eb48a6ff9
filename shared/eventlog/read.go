package eventlog

import (
	"context"
	"errors"

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

// Read reads a page of one stream or session, by start sequence. It says nothing
// about events that were removed: they are left out without a word. Errors wrap
// [ErrUnavailable] or ctx's error.
func (l *Log) Read(ctx context.Context, q Query) (Page, error) {
	p := l.Partition(q.Session)
	filter := event.Subject{Partition: p, Session: q.Session, Stream: q.Stream}.String()
	if q.Stream == "" {
		filter += "*"
	}
	var page Page
	bytes := 0
	s := scan{log: l, p: p, filter: filter, upTo: q.UpTo, through: q.After, pull: min(q.MaxEvents, 500), handle: func(e Entry) bool {
		if e.Valid {
			page.Entries = append(page.Entries, e)
			bytes += e.Size
		}
		return len(page.Entries) < q.MaxEvents && bytes < q.MaxBytes
	}}
	through, err := s.run(ctx)
	if err != nil {
		return Page{}, err
	}
	page.Through = through
	return page, nil
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
