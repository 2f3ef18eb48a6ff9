package window

import (
	"cmp"
	"math"
	"slices"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// View is the result of one read of a window.
type View struct {
	Extent
	// Inside says that nothing after the cursor was evicted; without it only the
	// fields up to Items mean anything.
	Inside    bool
	Common    uint64 // the lowest of the forks that the reader has not seen yet
	ClearedAt uint64
	Losses    []eventlog.Loss // that the reader has not seen yet
	// Life is that of the chain: one that waited for its session may have one by now.
	Life string
	// EndedAt is the sequence at which the place ends; 0 while it is open.
	EndedAt uint64
	// Items are the events after the cursor; Through is the cursor past them,
	// which is End when there are no more.
	Items      []Item
	Through    uint64
	LastNumber uint64 // the number of the last item's entry
	More       bool
}

// Limits bound what one read takes.
type Limits struct{ Events, Bytes int }

// Read returns the events after r's cursor. items is reused.
func (w *Window) Read(r *ChainCursor, limit Limits, items []Item) View {
	w.mu.RLock()
	defer w.mu.RUnlock()
	c := r.Chain
	v := View{
		Extent: w.extent(), ClearedAt: c.clearedAt, Losses: c.lossesAfter(r, w.start), EndedAt: c.end(), Life: c.Place.Life,
		Items: items[:0],
	}
	if c.flow != nil {
		v.ClearedAt = max(v.ClearedAt, c.flow.clearedAt)
	}
	if len(w.forks) > r.Forks {
		v.Common = w.commonSince(r.Forks)
		return v
	}
	v.Inside = r.Cursor+1 >= w.start
	if v.Inside {
		w.collect(&v, r, limit)
	}
	return v
}

// collect fills in the items.
func (w *Window) collect(v *View, r *ChainCursor, limit Limits) {
	c := r.Chain
	v.Through = max(v.End, r.Cursor)
	if c.length == 0 || w.ring.at(c.last).Sequence <= r.Cursor {
		return
	}
	of := streamLinks
	if c.flow == nil {
		of = flowLinks
	}
	n, bytes := w.after(c, r, of), 0
	for {
		en := w.ring.at(n)
		if !en.dead {
			if len(v.Items) >= limit.Events || len(v.Items) > 0 && bytes+int(en.size) > limit.Bytes {
				v.More = true
				v.Through = v.Items[len(v.Items)-1].Sequence
				return
			}
			it := Item{Sequence: en.Sequence, Time: en.Time, Offset: en.offset, Number: n}
			it.Frame, it.Segment = w.frames.bytes(en.offset, en.size)
			if c.flow == nil {
				it.Stream = w.byNumber[en.chain].Place.Stream
			} else {
				it.Stream = c.Place.Stream
			}
			if en.traced {
				it.Trail = w.trails.of(en.Sequence)
			}
			v.Items = append(v.Items, it)
			bytes += int(en.size)
			v.LastNumber = n
		}
		next := of(en).next
		if next == 0 || n == c.last {
			return
		}
		n += uint64(next)
	}
}

// after returns the number of the oldest entry of a chain after r's cursor, which
// must exist. It is next to the one returned last, or else found from the chain's end.
func (w *Window) after(c *Chain, r *ChainCursor, of linksOf) uint64 {
	if n := r.LastNumber; n >= w.ring.first && n < w.ring.next && n >= c.first {
		if en := w.ring.at(n); en.Sequence == r.Cursor && of(en).next != 0 {
			return n + uint64(of(en).next)
		}
	}
	n := c.last
	for n != c.first {
		at := of(w.ring.at(n))
		if far := n - uint64(at.skip); at.skip != 0 && far >= c.first && w.ring.at(far).Sequence > r.Cursor {
			n = far
			continue
		}
		prev := n - uint64(at.prev)
		if w.ring.at(prev).Sequence <= r.Cursor {
			break
		}
		n = prev
	}
	return n
}

// BeforeNewest returns the sequence before the n newest events of a chain. When the window has fewer, left is
// the number of events to find before start, the window's; 0 when the window holds all events.
func (w *Window) BeforeNewest(c *Chain, n int) (before uint64, left int, start uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	of := streamLinks
	if c.flow == nil {
		of = flowLinks
	}
	number := c.last
	for range c.length {
		en := w.ring.at(number)
		if !en.dead {
			if n--; n == 0 {
				return en.Sequence - 1, 0, w.start
			}
		}
		number -= uint64(of(en).prev)
	}
	if w.start <= w.oldest {
		n = 0
	}
	return 0, n, w.start
}

// Changed returns a channel that is closed when a chain changes from now on.
func (w *Window) Changed(c *Chain) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// Trims returns the sequence of the newest trim of a chain's place, or for a flow of any of
// its streams, as far as the window holds it, which is from its start on.
func (w *Window) Trims(c *Chain) (newest, start uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if newest = c.newestTrim; c.flow != nil {
		newest = max(newest, c.flow.trimmedAt)
	}
	return newest, w.start
}

// Reached reports whether the window has reached the end of the log that a look has shown.
// It returns true for a window of another generation, which starts again soon: no look waits for it.
func (w *Window) Reached(state eventlog.State) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.end >= state.Last || w.origin != state.Origin || len(w.gens) == 0 || w.gens[len(w.gens)-1].ID != state.Generation().ID
}

// RolledBackTo returns the newest sequence that the partition has in common with its state when a
// reader had seen so many of the roll-backs.
func (w *Window) RolledBackTo(seen int) (common uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.commonSince(seen)
}

func (w *Window) commonSince(seen int) uint64 {
	common := uint64(math.MaxUint64)
	for _, c := range w.forks[seen:] {
		common = min(common, c)
	}
	return common
}

// Generations returns the generations that the window knows, oldest first, and the partition's origin.
func (w *Window) Generations() (origin string, gens []event.Generation) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.origin, w.gens
}

// view returns the window's knowledge of a name.
func (w *Window) view(n *lives) SessionView {
	v := n.SessionView
	if flow := n.flows[n.Life]; flow != nil {
		v.End = flow.EndedAt
	}
	for life, flow := range n.flows {
		if life != n.Life && flow.length > 0 {
			v.Others = max(v.Others, w.ring.at(flow.last).Sequence)
		}
	}
	return v
}

// Session returns the window's knowledge of the newest life of a session; false when it knows none.
func (w *Window) Session(session string) (v SessionView, known bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.names[session]
	if n == nil || !n.known {
		return SessionView{}, false
	}
	return w.view(n), true
}

// NewestEnd returns the sequence of the newest end of a life of a session, of which the window need not know
// the opening; 0 when it has none.
func (w *Window) NewestEnd(session string) (end uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if n := w.names[session]; n != nil {
		for _, flow := range n.flows {
			end = max(end, flow.EndedAt)
		}
	}
	return end
}

// ChangedSince returns the sessions that match, and that have an opening, an end, a trim or a clear
// after a sequence, each once and in that order. The window has these from start to end. Of one whose opening lies
// before the window's start it may know the end alone.
func (w *Window) ChangedSince(after uint64, match func(session string) bool) (all []SessionView, start, end uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	first, _ := slices.BinarySearchFunc(w.controls, after+1, func(c control, at uint64) int { return cmp.Compare(c.sequence, at) })
	known := map[string]bool{}
	for _, c := range w.controls[first:] {
		session := c.chain.Place.Session
		n := w.names[session]
		if known[session] || n == nil || !match(session) {
			continue
		}
		known[session] = true
		if n.known {
			all = append(all, w.view(n))
			continue
		}
		for _, flow := range n.flows {
			if flow.EndedAt != 0 && flow.trimmedAt == 0 { // else its events are removed, and perhaps all its entries
				all = append(all, SessionView{Session: session, End: flow.EndedAt})
				break
			}
		}
	}
	return all, w.start, w.end
}
