package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// Query says which part of a partition to read.
type Query struct {
	// Session, Life and Stream select the events; an empty Stream means all streams of
	// the life. Control entries are not read.
	Session, Life, Stream string
	// After and UpTo bound the sequences: After < sequence ≤ UpTo.
	After, UpTo uint64
	// MaxEvents and MaxBytes bound the page; both at least 1.
	MaxEvents, MaxBytes int
	// HeadersOnly leaves the messages out. Their sizes still count for MaxBytes.
	HeadersOnly bool
}

// Page is the result of a read.
type Page struct {
	// Entries are events in order of sequence, valid ones only.
	Entries []Entry
	// Through is the sequence up to which Entries are complete.
	Through uint64
}

// Read reads a page of one stream or session, by start sequence. Deleted events
// are left out and not reported; those of announced trims may still be there. Errors wrap [ErrUnavailable] or ctx's error.
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

// Scan passes every entry of partition p with after < sequence ≤ upTo, valid or
// not, to handle, in order, until handle returns false. It returns the sequence up to
// which the entries were complete. While handle does not return, nothing more is read:
// it may wait, for a few seconds at most. Deleted entries are left out and not reported.
//
// One scan costs about as much as delivering the partition once, however many
// streams are looked for: far less than a [Log.Read] for each of them. Errors wrap
// [ErrUnavailable] or ctx's error.
func (l *Log) Scan(ctx context.Context, p int, after, upTo uint64, handle func(Entry) (more bool)) (through uint64, err error) {
	s := scan{log: l, p: p, filter: streamSubject(p), upTo: upTo, through: after, handle: handle, pull: tailPull}
	return s.run(ctx)
}

// Lives passes the headers of a partition's openings with after < sequence ≤ upTo to handle, and then those of
// the ends of lives there. Errors are those of [Log.Scan].
func (l *Log) Lives(ctx context.Context, p int, after, upTo uint64, handle func(Entry)) error {
	for _, filter := range event.LivesFilters(p) {
		s := scan{log: l, p: p, filter: filter, upTo: upTo, through: after, pull: tailPull, headersOnly: true, handle: func(e Entry) bool {
			if e.Valid {
				handle(e)
			}
			return true
		}}
		if _, err := s.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// scan is a read of a part of a partition with one short-lived ordered consumer.
// Messages that come when it is over are dropped.
type scan struct {
	log    *Log
	p      int
	filter string
	upTo   uint64
	handle func(Entry) (more bool)
	pull   int // how many messages are asked for at a time
	// headersOnly leaves the messages out.
	headersOnly bool

	mu      sync.Mutex // held by the handler, which nats.go calls
	through uint64
	err     error
	over    bool
	done    chan struct{} // closed when over
	// drained gets a token when the consumer reports no pending message. Then the leader is asked: the consumer
	// counts one message too few where another was removed as the consumer was made (docs/upstream/0039).
	drained chan struct{}
}

// scanIdle is how long the server keeps the consumer of a scan whose process died.
const scanIdle = 30 * time.Second

// scanPatience is how long a scan waits for the next event before it asks whether
// there still is one: no message reports that it was removed before it could be sent.
const scanPatience = 250 * time.Millisecond

func (s *scan) run(ctx context.Context) (through uint64, err error) {
	if s.through >= s.upTo {
		return s.upTo, nil
	}
	outer := ctx
	ctx, done := natsconn.While(ctx, s.log.nc)
	defer done()
	defer func() {
		if err != nil {
			err = scanError(outer, err)
		}
	}()
	reader, err := natsconn.NewReader(ctx, s.log.js, streamName(s.p), natsconn.ReaderConfig{Filter: s.filter, After: s.through, HeadersOnly: s.headersOnly, Ahead: s.pull, Idle: scanIdle})
	if err != nil {
		return 0, err
	}
	defer s.log.stopReader(s.p, reader)
	s.done, s.drained = make(chan struct{}), make(chan struct{}, 1)
	if reader.Pending == 0 {
		s.drained <- struct{}{}
	}
	if err := reader.Start(s.take); err != nil {
		return 0, err
	}
	s.wait(ctx, reader.Broken())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.through, s.err
}

// take takes a message, called by nats.go.
func (s *scan) take(msg *nats.Msg, meta *nats.MsgMetadata) {
	drained := false
	defer func() {
		if drained {
			ring(s.drained)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	e := entryFrom(msg, meta, s.p, len(s.log.parts), s.headersOnly)
	if e.Sequence > s.upTo {
		s.end(s.upTo, nil)
		return
	}
	s.through = e.Sequence
	more := s.handle(e)
	switch {
	case e.Sequence == s.upTo:
		s.end(s.upTo, nil)
	case !more:
		s.end(e.Sequence, nil)
	case e.Pending == 0:
		drained = true
	}
}

// end ends the scan. The caller holds mu.
func (s *scan) end(through uint64, err error) {
	if !s.over {
		s.over, s.through, s.err = true, through, err
		close(s.done)
	}
}

// wait returns when the scan is over. It ends the scan when no more messages will come.
func (s *scan) wait(ctx context.Context, broken <-chan error) {
	ticker := time.NewTicker(scanPatience)
	defer ticker.Stop()
	alone := !s.log.Clustered() // the consumer lies where the leader is, and is not behind it
	seen := uint64(0)           // s.through in the last turn
	stood := 0
	for {
		ask := false
		select {
		case <-s.done:
			return
		case <-ctx.Done():
			s.stop(ctx.Err())
			return
		case err := <-broken:
			s.stop(err)
			return
		case <-s.drained:
			ask = true
		case <-ticker.C:
		}
		if !s.mu.TryLock() {
			continue // the handler is at work
		}
		through := s.through
		s.mu.Unlock()
		if through != seen {
			seen, stood = through, 0
			if !ask {
				continue
			}
		}
		next, err := s.log.get(ctx, s.p, through+1, jetstream.WithGetMsgSubject(s.filter))
		switch {
		case errors.Is(err, ErrNotFound) || err == nil && next.Sequence > s.upTo:
			s.nothingBehind(through)
		case err != nil:
			s.stop(err)
			return
		case ask || alone:
		case stood == scanStands:
			s.stop(errStands)
			return
		default:
			stood++
		}
	}
}

// scanStands is how often the leader may have a next entry that the consumer does not deliver: some 2 s.
const scanStands = 8

// errStands is returned when a consumer does not deliver entries that the leader has: the
// consumer's server is far behind, and another one may not be.
var errStands = fmt.Errorf("%w: the consumer is behind the partition", ErrUnavailable)

func (s *scan) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(s.through, err)
}

// nothingBehind ends a scan that has not moved meanwhile.
func (s *scan) nothingBehind(through uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.through == through {
		s.end(s.upTo, nil)
	}
}

func scanError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e := apiError(err); e != nil && !errors.Is(e, ErrUnavailable) {
		return fmt.Errorf("%w: %w", ErrUnavailable, e)
	}
	return apiError(err)
}

// First returns the sequence of the oldest retained entry on a subject at or after
// a sequence. The error wraps [ErrNotFound] or [ErrUnavailable].
func (l *Log) First(ctx context.Context, s event.Subject, from uint64) (uint64, error) {
	msg, err := l.get(ctx, s.Partition, from, jetstream.WithGetMsgSubject(s.String()))
	if err != nil {
		return 0, err
	}
	return msg.Sequence, nil
}

// NewestSequence returns the sequence of the newest retained entry on a subject. The error
// wraps [ErrNotFound] or [ErrUnavailable].
func (l *Log) NewestSequence(ctx context.Context, s event.Subject) (uint64, error) {
	e, err := l.Newest(ctx, s)
	return e.Sequence, err
}

// Has reports whether the log retains an entry on a subject. The error wraps [ErrUnavailable].
func (l *Log) Has(ctx context.Context, s event.Subject) (bool, error) {
	_, err := l.NewestSequence(ctx, s)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Newest returns the newest retained entry on a subject. The error wraps [ErrNotFound] or
// [ErrUnavailable].
func (l *Log) Newest(ctx context.Context, s event.Subject) (Entry, error) {
	msg, err := l.newestMessage(ctx, s.Partition, s.String())
	if err != nil {
		return Entry{}, err
	}
	return entryFromRaw(msg, s.Partition, len(l.parts)), nil
}

// At returns the entry at a sequence. The error wraps [ErrNotFound] or [ErrUnavailable].
func (l *Log) At(ctx context.Context, p int, sequence uint64) (Entry, error) {
	msg, err := l.get(ctx, p, sequence)
	if err != nil {
		return Entry{}, err
	}
	return entryFromRaw(msg, p, len(l.parts)), nil
}
