package edge

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// partition is one partition at the edge: its window, and the tail that fills it.
type partition struct {
	number    int
	log       *eventlog.Log
	sessions  *session.Registry
	ledger    *ledger
	window    *window
	tables    tables
	looks     looks
	backlog   backlog
	logger    *slog.Logger
	backfill  int                            // bytes of the log to begin with
	turns     chan struct{}                  // one for each backfill that goes on, shared by all partitions
	turn      bool                           // the tail has one
	tailed    atomic.Pointer[eventlog.State] // when the tail last began; nil before it has
	metrics   *metrics
	traced    bool // there are traces
	strangers strangers
	// jumped asks for the partition's marks: the tail has begun, or has missed something.
	jumped chan struct{}
}

// run tails the partition into the window until ctx ends.
func (p *partition) run(ctx context.Context) error {
	return p.log.Tail(ctx, p.number, eventlog.TailConfig{
		Start:  p.start,
		Handle: p.handle,
		Through: func(sequence, missed uint64) {
			p.endTurn()
			p.window.through(sequence, missed)
			p.askForMarks()
		},
	})
}

// watch lets frames carry a generation that was begun while the tail went on.
func (p *partition) watch(ctx context.Context) {
	for {
		state, changed := p.log.State(p.number)
		tailed := p.tailed.Load()
		p.window.extend(state, tailed != nil && tailed.SameServer(state))
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// lag returns by how many sequences the window is behind the log, as last seen.
func (p *partition) lag() float64 {
	state, _ := p.log.State(p.number)
	if end := p.window.stats().end; state.Last > end {
		return float64(state.Last - end)
	}
	return 0
}

func (p *partition) handle(e eventlog.Entry, missed uint64) {
	p.metrics.received.Inc()
	if missed > 0 {
		p.metrics.missed.Add(float64(missed))
	}
	if !e.Valid {
		p.metrics.skipped.WithLabelValues("subject").Inc()
	}
	if e.Valid && e.Subject.Kind == event.Message && !validMessage(e.Data) {
		p.metrics.skipped.WithLabelValues("json").Inc()
		e.Valid = false
	}
	var rec session.Record // nothing while the session is not registered
	if e.Valid {
		rec = p.strangers.record(e.Subject.Session)
	}
	if e.Valid && e.Subject.Kind == event.Message && e.Sequence > p.endIn(rec, e.Subject.Session, e.Subject.Stream) {
		p.metrics.skipped.WithLabelValues("closed").Inc()
		e.Valid = false
	}
	if !p.traced {
		e.Trace = tracing.Context{}
	}
	p.window.append(e, missed, rec.Incarnation)
	if missed > 0 {
		p.askForMarks()
	}
}

// endOf returns the sequence at which the registry says that a stream or its
// session ended, the session alone when stream is empty, and the largest number
// while neither has. The registry knows it for longer than the log has the marker.
func (p *partition) endOf(name, stream string) uint64 {
	rec, _ := p.sessions.Session(name)
	return p.endIn(rec, name, stream)
}

// endIn is endOf for a session whose record is known.
func (p *partition) endIn(of session.Record, name, stream string) uint64 {
	end := uint64(math.MaxUint64)
	if of.ClosedAt != 0 {
		end = of.ClosedAt
	}
	if rec, ok := p.sessions.Stream(name, stream); ok && rec.ClosedAt != 0 {
		end = min(end, rec.ClosedAt)
	}
	return end
}

func (p *partition) askForMarks() {
	select {
	case p.jumped <- struct{}{}:
	default: // the one that is asked for already will do
	}
}

// fetchMarks fetches the partition's marks as soon as a window has holes, until
// ctx ends: the earlier they are asked for, the less has been removed since that
// the window still holds.
func (p *partition) fetchMarks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.jumped:
		}
		v := p.window.holes()
		if !v.inside || v.proved <= 1 {
			continue
		}
		if _, err := p.marksOfWindow(ctx, "", v); err != nil && ctx.Err() == nil {
			p.logger.Debug("no marks for a partition", "partition", p.number, "error", err)
		}
	}
}

// start says where the tail begins: with a backfill the first time, and later on
// behind the window's end, if the log still is what the window shows.
func (p *partition) start(ctx context.Context, state eventlog.State) (uint64, error) {
	p.endTurn() // of an attempt that was interrupted
	after, floor := p.backfillFrom(state)
	before := p.tailed.Load()
	if before == nil {
		if err := p.takeTurn(ctx); err != nil {
			return 0, err
		}
		p.window.begin(state, after, floor)
		p.tailed.Store(&state)
		return after, nil
	}
	end := p.window.stats().end
	common, same, err := p.compare(ctx, *before, state, end)
	if err != nil {
		return 0, err
	}
	if same {
		p.window.goOn(state)
		after = end
	} else {
		p.logger.Warn("the partition was rolled back; the window begins anew", "partition", p.number, "from", end, "to", state.Last, "common", common)
		p.metrics.rollbacks.Inc()
		p.window.rollback(state, after, floor, common)
	}
	p.tailed.Store(&state)
	return after, nil
}

// turnPatience bounds how long a backfill waits for its turn, in case another one
// cannot go on.
const turnPatience = 30 * time.Second

// takeTurn waits until few enough partitions are being read. A server that has to
// read them all at once needs more memory, and a quarter more time.
func (p *partition) takeTurn(ctx context.Context) error {
	timer := time.NewTimer(turnPatience)
	defer timer.Stop()
	select {
	case p.turns <- struct{}{}:
		p.turn = true
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (p *partition) endTurn() {
	if p.turn {
		p.turn = false
		<-p.turns
	}
}

// compareEntries is how many of its newest entries a window looks for in the log.
const compareEntries = 8

// compare tells whether the log, of which the window has seen another state before,
// goes on behind the window, and if it does not, the newest sequence that both have
// in common as far as that is known.
func (p *partition) compare(ctx context.Context, before, state eventlog.State, end uint64) (common uint64, same bool, err error) {
	if !state.Created.Equal(before.Created) || state.Birth != before.Birth {
		return 0, false, nil
	}
	fork := event.Fork(before.Generations, state.Generations)
	common = min(end, state.Last, fork)
	if common < end {
		return common, false, nil
	}
	entries, _ := p.window.newest(compareEntries)
	for _, en := range entries {
		e, err := p.log.At(ctx, p.number, en.sequence)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue // removed meanwhile; an older one may still be there
		}
		if err != nil {
			return 0, false, err
		}
		if e.Time.UnixNano() == en.time {
			return end, true, nil
		}
		return 0, false, nil // replaced, and nobody noted when
	}
	return end, true, nil
}

// backfillFrom returns the sequence to begin after so that what follows fits into
// the window, and the window's floor.
func (p *partition) backfillFrom(state eventlog.State) (after, floor uint64) {
	if state.Events == 0 {
		return state.Last, 1
	}
	if state.Bytes <= uint64(p.backfill) { //nolint:gosec // a positive number of bytes
		return state.First - 1, 1
	}
	// Sequences are spread evenly enough for a start; what is too much is evicted.
	span := state.Last - state.First + 1
	after = state.Last - uint64(float64(span)*float64(p.backfill)/float64(state.Bytes))
	return max(after, state.First-1), max(after, state.First-1) + 1
}

// validMessage reports whether a direct publisher's bytes can be framed and put
// into JSON answers, which are in UTF-8 (RFC 8259, section 8.1). Ingest checks more, and
// before it stores.
func validMessage(data []byte) bool { return utf8.Valid(data) && event.ValidJSON(data) }
