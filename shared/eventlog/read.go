package eventlog

import (
	"context"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// Query says which part of a partition to read.
type Query struct {
	// Session, Life and Stream say whose events; an empty Stream means all streams of
	// the life. Control entries are not read.
	Session, Life, Stream string
	// After and UpTo bound the sequences: After < sequence ≤ UpTo.
	After, UpTo uint64
	// MaxEvents and MaxBytes bound the page; both at least 1.
	MaxEvents, MaxBytes int
	// HeadersOnly leaves the messages out. Their sizes still count for MaxBytes.
	HeadersOnly bool
}

// Page is what a read found.
type Page struct {
	// Entries are events in order of sequence, valid ones only.
	Entries []Entry
	// Through is the sequence up to which there is no more than Entries.
	Through uint64
}

// Read reads a page of one stream or session, by start sequence. It says nothing
// about events that were removed: they are left out without a word. Errors wrap
// [ErrUnavailable] or ctx's error.
func (l *Log) Read(ctx context.Context, q Query) (Page, error) {
	p := l.Partition(q.Session)
	of := event.Subject{Partition: p, Session: q.Session, Life: q.Life, Stream: q.Stream}
	filter := of.String()
	if q.Stream == "" {
		filter = of.Filter()
	}
	var page Page
	bytes := 0
	s := scan{log: l, p: p, filter: filter, upTo: q.UpTo, through: q.After, pull: min(q.MaxEvents, 500), headersOnly: q.HeadersOnly, handle: func(e Entry) bool {
		if e.Valid && e.Subject.Kind == event.Message {
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

const (
	// aheadBytes is about how much a reader asks for at a time. A server ends a connection for
	// which 64 MiB wait, and one has many readers.
	aheadBytes = 2 << 20
	// minAhead is how many messages that is at least.
	minAhead = 8
)

// ahead returns how many messages of a partition are about aheadBytes, by the average of those
// that it holds, and at most most. nats.go can bound a request in bytes as well, but a reader
// stands still for half a minute when the answer comes while it asks (jetstream/pull.go of
// v1.55, checkPending; docs/upstream/0003).
func (l *Log) ahead(p, most int) int {
	state, _ := l.State(p)
	if state.Events == 0 {
		return most
	}
	average := max(state.Bytes/state.Events, 1)
	return min(max(int(min(aheadBytes/average, 1<<20)), minAhead), most) //nolint:gosec // small
}

func (l *Log) newReader(ctx context.Context, p int, cfg natsconn.ReaderConfig) (*natsconn.Reader, error) {
	if !cfg.HeadersOnly {
		cfg.Ahead = l.ahead(p, cfg.Ahead)
	}
	return natsconn.NewReader(ctx, l.js, streamName(p), cfg)
}

func (l *Log) stopReader(p int, r *natsconn.Reader) {
	if err := r.Stop(); err != nil {
		l.log.Debug("a consumer is left to the server", "partition", p, "error", err)
	}
}
