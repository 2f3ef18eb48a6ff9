package cursor

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// backlog serves the reads of one partition for cursors below the window. A
// few reads run one by one, each with a filter of its own; when more wait,
// one scan of the partition serves them all, so that a storm of resumes costs about
// as much as delivering the partition once. At most --log-reads reads and scans run
// at a time on an edge; one partition has one scan at a time. budget bounds the bytes
// that are read and not yet taken.
//
// docs/adr/0008 has the figures.
type backlog struct {
	base    context.Context //nolint:containedctx // while the partition is followed: scans end with it
	log     *eventlog.Log
	number  int
	slots   chan struct{} // one for each read in progress, shared by all partitions
	budget  int           // bytes
	metrics *metrics

	mu      sync.Mutex
	waiting []*logRead
	busy    bool          // a dispatcher runs
	arrived chan struct{} // closed at the next arrival; nil without a waiter
	work    sync.WaitGroup
}

// logRead is one reader's page. It belongs to the dispatcher until done is closed.
type logRead struct {
	ctx         context.Context //nolint:containedctx // of the call that waits
	at          window.Place
	after, upTo uint64
	limit       window.Limits

	page  eventlog.Page
	bytes int
	err   error
	done  chan struct{}
}

const (
	// scanFrom is how many readers make a scan cheaper than a read for each.
	scanFrom = 4
	// scanPause is how long a scan waits for the next requests of its readers.
	scanPause = 100 * time.Millisecond
	// minScanBudget is the least that a scan may hold for its readers, in bytes.
	minScanBudget = 4 << 20
	// newestPage is how many headers are read at a time.
	newestPage = 1000
)

// read reads a page of a place: after < sequence ≤ upTo. Errors are those of
// [eventlog.Log.Read].
func (b *backlog) read(ctx context.Context, at window.Place, after, upTo uint64, limit window.Limits) (eventlog.Page, error) {
	if after >= upTo {
		return eventlog.Page{Through: upTo}, nil
	}
	q := &logRead{ctx: ctx, at: at, after: after, upTo: upTo, limit: limit, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, q)
	if b.arrived != nil {
		close(b.arrived)
		b.arrived = nil
	}
	if !b.busy {
		b.busy = true
		b.work.Go(b.dispatch)
	}
	b.mu.Unlock()
	select {
	case <-q.done:
		return q.page, q.err
	case <-ctx.Done():
		return eventlog.Page{}, ctx.Err()
	}
}

// newest returns the sequences of the n newest events of a place with after < sequence ≤ upTo, in
// their order. Errors are those of [eventlog.Log.Read].
func (b *backlog) newest(ctx context.Context, at window.Place, after, upTo uint64, n int) (all []uint64, _ error) {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for after < upTo {
		b.metrics.logReads.Inc()
		page, err := b.log.Read(ctx, eventlog.Query{
			Session: at.Session, Life: at.Life, Stream: at.Stream, After: after, UpTo: upTo,
			MaxEvents: newestPage, MaxBytes: math.MaxInt, HeadersOnly: true,
		})
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			all = append(all, e.Sequence)
		}
		all, after = slices.Clone(all[max(len(all)-n, 0):]), page.Through
	}
	return all, nil
}

// dispatch serves the waiting reads, and ends when none is left. While every slot is
// taken, more reads may arrive to share the next scan.
func (b *backlog) dispatch() {
	for {
		b.slots <- struct{}{}
		b.mu.Lock()
		switch n := len(b.waiting); {
		case n == 0:
			b.busy = false
			b.mu.Unlock()
			<-b.slots
			return
		case n < scanFrom:
			q := b.waiting[0]
			b.waiting = b.waiting[1:]
			b.mu.Unlock()
			b.work.Go(func() {
				defer func() { <-b.slots }()
				b.readOne(q)
			})
		default:
			b.mu.Unlock()
			b.scan()
			<-b.slots
		}
	}
}

func (b *backlog) readOne(q *logRead) {
	if q.err = q.ctx.Err(); q.err == nil {
		b.metrics.logReads.Inc()
		q.page, q.err = b.log.Read(q.ctx, eventlog.Query{
			Session: q.at.Session, Life: q.at.Life, Stream: q.at.Stream, After: q.after, UpTo: q.upTo,
			MaxEvents: q.limit.Events, MaxBytes: q.limit.Bytes,
		})
	}
	close(q.done)
}

// scan serves all waiting reads with one read of the partition.
func (b *backlog) scan() {
	b.metrics.logScans.Inc()
	ctx, cancel := context.WithTimeout(b.base, scanTimeout)
	defer cancel()
	s := &logScan{backlog: b, ctx: ctx, byPlace: map[window.Place][]*logRead{}}
	from := s.join(0)
	if s.readers == 0 {
		return
	}
	s.position = from
	s.finish(b.log.Scan(ctx, b.number, from, s.upTo, s.take))
}

// scanTimeout bounds a scan; its readers then ask again, and continue where it ended.
const scanTimeout = time.Minute

// logScan is one scan.
type logScan struct {
	backlog *backlog
	ctx     context.Context //nolint:containedctx // the scan's
	// byPlace holds the reads that the scan serves.
	byPlace  map[window.Place][]*logRead
	readers  int
	position uint64
	upTo     uint64 // the highest upTo of the reads
	held     int    // bytes on pages that are not handed over yet
}

// join adds the waiting reads whose cursors the scan has not passed, and returns the
// lowest of their cursors.
func (s *logScan) join(position uint64) (least uint64) {
	b := s.backlog
	b.mu.Lock()
	defer b.mu.Unlock()
	least = ^uint64(0)
	rest := b.waiting[:0]
	for _, q := range b.waiting {
		switch {
		case q.ctx.Err() != nil: // its caller has given up
		case q.after < position:
			rest = append(rest, q)
		default:
			s.byPlace[q.at] = append(s.byPlace[q.at], q)
			s.readers++
			s.upTo = max(s.upTo, q.upTo)
			least = min(least, q.after)
		}
	}
	clear(b.waiting[len(rest):])
	b.waiting = rest
	return least
}

// take takes an entry of the scan.
func (s *logScan) take(e eventlog.Entry) (more bool) {
	s.position = e.Sequence
	if !e.Valid || e.Subject.Kind != event.Message {
		return true
	}
	s.give(window.Place{Session: e.Subject.Session, Life: e.Subject.Life, Stream: e.Subject.Stream}, e)
	s.give(window.Place{Session: e.Subject.Session, Life: e.Subject.Life}, e)
	if s.held > s.backlog.budget {
		s.pause()
	}
	return s.readers > 0
}

// give adds an entry to the pages of a place's readers.
func (s *logScan) give(at window.Place, e eventlog.Entry) {
	reads := s.byPlace[at]
	if len(reads) == 0 {
		return
	}
	rest := reads[:0]
	for _, q := range reads {
		if e.Sequence > q.after && e.Sequence <= q.upTo {
			q.page.Entries = append(q.page.Entries, e)
			q.bytes += e.Size
			s.held += e.Size
		}
		if len(q.page.Entries) >= q.limit.Events || q.bytes >= q.limit.Bytes || e.Sequence >= q.upTo {
			s.hand(q)
			continue
		}
		rest = append(rest, q)
	}
	s.keep(at, rest)
}

func (s *logScan) keep(at window.Place, reads []*logRead) {
	if len(reads) == 0 {
		delete(s.byPlace, at)
	} else {
		s.byPlace[at] = reads
	}
}

// hand gives a reader its page.
func (s *logScan) hand(q *logRead) {
	q.page.Through = min(s.position, q.upTo)
	s.held -= q.bytes
	s.readers--
	close(q.done)
}

// finish hands the remaining reads their pages, once the scan has reached through, or has failed. The entries
// read until then are good: else quiet streams would never get past the entries that one scan can read in time.
func (s *logScan) finish(through uint64, err error) {
	if err != nil {
		through = s.position
	}
	for _, reads := range s.byPlace {
		for _, q := range reads {
			if q.page.Through = min(through, q.upTo); q.page.Through <= q.after {
				q.page, q.err = eventlog.Page{}, err
			}
			close(q.done)
		}
	}
}

// pause hands over the pages read so far, and waits a moment for the next requests of
// their readers. A request that takes longer is served by the next scan.
func (s *logScan) pause() {
	given := 0
	for at, reads := range s.byPlace {
		rest := reads[:0]
		for _, q := range reads {
			if len(q.page.Entries) == 0 && q.upTo > s.position {
				rest = append(rest, q)
				continue
			}
			s.hand(q)
			given++
		}
		s.keep(at, rest)
	}
	timer := time.NewTimer(scanPause)
	defer timer.Stop()
	for target := s.readers + given; s.readers < target; {
		arrived := s.backlog.arrival()
		s.join(s.position)
		if s.readers >= target {
			return
		}
		select {
		case <-arrived:
		case <-timer.C:
			s.join(s.position)
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// arrival returns a channel that is closed when the next read arrives.
func (b *backlog) arrival() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.arrived == nil {
		b.arrived = make(chan struct{})
	}
	return b.arrived
}
