package cursor

import (
	"math"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// defaultBackfill is how many bytes of a partition a window reads when no reader needs more: what a
// first reader waits for.
const defaultBackfill = 2 << 20

// backfill is how many bytes of the newest events of one partition its window reads when it begins.
// Where --window-backfill does not say, that depends on who waits for it:
//
//	readers without a cursor, or with one that least covers   least
//	a reader with a lower cursor                              most
//	nobody: all partitions are followed                       most
//
// A reader alone would sooner have its events from the log. But clients come back together, after a
// restart or from another edge, with cursors of about the same age: one that is low means many.
type backfill struct{ least, most int }

// newBackfill returns that of each of n partitions. A fifth of the window is left to what follows.
func newBackfill(cfg Config, n int) backfill {
	fits := cfg.WindowBytes / n * 8 / 10
	switch {
	case cfg.Backfill > 0:
		fits = min(fits, cfg.Backfill/n)
		return backfill{fits, fits}
	case cfg.Backfill < 0:
		return backfill{}
	case cfg.Linger < 0:
		return backfill{fits, fits}
	default:
		return backfill{min(fits, defaultBackfill), fits}
	}
}

// first returns the sequence that a new window begins after, and its start. lowest is the lowest cursor
// of the readers that wait for it.
func (b backfill) first(state eventlog.State, lowest uint64) (after, start uint64) {
	after, start = newestBytes(state, b.least)
	if lowest != noCursor && lowest+1 < start {
		return newestBytes(state, b.most)
	}
	return after, start
}

// again returns the same of a window that has lost what it had to a roll-back: its readers may be
// anywhere.
func (b backfill) again(state eventlog.State) (after, start uint64) {
	return newestBytes(state, b.most)
}

// newestBytes returns the sequence that the newest events of a partition follow, up to a number of bytes, and
// the start of a window that begins there.
func newestBytes(state eventlog.State, bytes int) (after, start uint64) {
	if state.Events == 0 {
		return state.Last, 1
	}
	if state.Bytes <= uint64(bytes) { //nolint:gosec // a positive number of bytes
		return state.First - 1, 1
	}
	// Sequences are spread evenly enough for a start; what is too much is evicted.
	span := state.Last - state.First + 1
	after = state.Last - uint64(float64(span)*float64(bytes)/float64(state.Bytes))
	return max(after, state.First-1), max(after, state.First-1) + 1
}

// noCursor is that of a reader that does not resume. It needs nothing of the window that lies below
// another one's cursor.
const noCursor = math.MaxUint64

// cursor returns where a subscriber of one place resumes, in its partition, as far as its event ID
// says; noCursor for one that does not.
func (s Start) cursor() uint64 {
	if s.After == "" {
		return noCursor
	}
	id, err := event.ParseID(s.After)
	if err != nil {
		return noCursor // it begins at the oldest event, after a gap
	}
	return id.Sequence
}

// cursors returns the same of a subscriber of several places, for each partition.
func (s Start) cursors() func(partition int) uint64 {
	id, err := ParseGroupID(s.After)
	return func(partition int) uint64 {
		if at, ok := id.At[partition]; ok && err == nil {
			return at.Added
		}
		return noCursor
	}
}

// lowestOf returns the lowest cursor of the readers of a partition.
func (ps *Partitions) lowestOf(p *Partition) uint64 {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return p.lowest
}
