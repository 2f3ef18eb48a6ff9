package edge

import "rejoin/shared/eventlog"

// view is what a window says to one reader at one moment.
type view struct {
	// inside says that the cursor lies at or above the floor; without it only the
	// fields up to items mean anything.
	inside     bool
	floor      uint64
	rollbacks  int
	common     uint64 // of the rollbacks that the reader has not seen yet
	generation string
	birth      string
	version    uint64
	clearedAt  uint64
	losses     []loss // those that the reader has not heard of yet
	// proved is the proved floor.
	proved uint64
	// end is the window's end.
	end uint64
	// life is that of the chain: one that waited for its session may have got it.
	life string
	// closed is the sequence at which the place ends; 0 while it is open.
	closed uint64
	// items are the events behind the cursor; through is the cursor behind them,
	// which is end when there are no more.
	items   []item
	through uint64
	last    uint64 // the number of the last item's entry
	more    bool
}

// loss is what is gone: a stream's events up to a sequence, or those of all streams of the
// life when stream is empty.
type loss struct {
	stream  string
	upTo    uint64
	reason  Reason
	certain bool // an event of it is gone for sure
}

// limits bound what one read takes.
type limits struct{ events, bytes int }

// read returns what follows r's cursor. items is reused.
func (w *window) read(r *reader, limit limits, items []item) view {
	w.mu.RLock()
	defer w.mu.RUnlock()
	c := r.chain
	v := view{
		floor: w.floor, rollbacks: len(w.rollbacks), birth: w.birth, generation: w.gens[len(w.gens)-1].ID,
		version: c.version, clearedAt: c.clearedAt, losses: c.lossesBehind(r, w.floor), proved: w.proved, end: w.end, closed: c.closed, life: c.place.life,
		items: items[:0],
	}
	if c.flow != nil {
		v.clearedAt = max(v.clearedAt, c.flow.clearedAt)
		if f := c.flow.closed; f != 0 && (v.closed == 0 || f < v.closed) {
			v.closed = f
		}
	}
	if len(w.rollbacks) > r.rollbacks {
		v.common = w.rollbacks[r.rollbacks]
		for _, common := range w.rollbacks[r.rollbacks:] {
			v.common = min(v.common, common)
		}
		return v
	}
	v.inside = r.cursor+1 >= w.floor
	if v.inside {
		w.collect(&v, r, limit)
	}
	return v
}

// collect fills in the items.
func (w *window) collect(v *view, r *reader, limit limits) {
	c := r.chain
	v.through = max(v.end, r.cursor)
	if c.length == 0 || w.ring.at(c.last).sequence <= r.cursor {
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
			if len(v.items) >= limit.events || len(v.items) > 0 && bytes+int(en.size) > limit.bytes {
				v.more = true
				v.through = v.items[len(v.items)-1].sequence
				return
			}
			it := item{sequence: en.sequence, time: en.time, offset: en.offset, number: n}
			it.frame, it.segment = w.frames.bytes(en.offset, en.size)
			if c.flow == nil {
				it.stream = w.byNumber[en.chain].place.stream
			} else {
				it.stream = c.place.stream
			}
			if en.traced {
				it.trail = w.trails.of(en.sequence)
			}
			v.items = append(v.items, it)
			bytes += int(en.size)
			v.last = n
		}
		next := of(en).next
		if next == 0 || n == c.last {
			return
		}
		n += uint64(next)
	}
}

// after returns the number of the oldest entry of a chain behind r's cursor; there
// is one. It is next to the one delivered last, or else found from the chain's end.
func (w *window) after(c *chain, r *reader, of linksOf) uint64 {
	if n := r.last; n >= w.ring.first && n < w.ring.next && n >= c.first {
		if en := w.ring.at(n); en.sequence == r.cursor && of(en).next != 0 {
			return n + uint64(of(en).next)
		}
	}
	n := c.last
	for n != c.first {
		at := of(w.ring.at(n))
		if far := n - uint64(at.jump); at.jump != 0 && far >= c.first && w.ring.at(far).sequence > r.cursor {
			n = far
			continue
		}
		prev := n - uint64(at.prev)
		if w.ring.at(prev).sequence <= r.cursor {
			break
		}
		n = prev
	}
	return n
}

// wait returns a channel that is closed when the reader's chain has changed since
// the view of that version was taken.
func (w *window) wait(r *reader, version uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.chain.version != version {
		return closedChannel
	}
	if r.chain.changed == nil {
		r.chain.changed = make(chan struct{})
	}
	return r.chain.changed
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// trims returns the sequence of the newest trim of a chain's place, or for a flow of any of
// its streams, as far as the window holds it, which is from the floor on.
func (w *window) trims(c *chain) (newest, floor uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if newest = c.newestTrim; c.flow != nil {
		newest = max(newest, c.flow.trimmedAt)
	}
	return newest, w.floor
}

// reached reports whether the window has come to the end of the log as a look has shown it.
// One that is of another generation begins anew soon, and is not to be waited for.
func (w *window) reached(state eventlog.State) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.end >= state.Last || w.birth != state.Birth || len(w.gens) == 0 || w.gens[len(w.gens)-1].ID != state.Generation().ID
}

// holes returns as much of a view as a look after a jump needs; inside says whether
// the window has caught up.
func (w *window) holes() view {
	w.mu.RLock()
	defer w.mu.RUnlock()
	v := view{inside: w.caughtUp, birth: w.birth, proved: w.proved, end: w.end, rollbacks: len(w.rollbacks)}
	if len(w.gens) > 0 {
		v.generation = w.gens[len(w.gens)-1].ID
	}
	return v
}
