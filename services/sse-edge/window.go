package edge

import (
	"math"
	"slices"
	"sync"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// window is the newest part of a partition in memory: finished frames in large
// byte segments, and an index of entries without pointers, through which one
// chain a stream and one a session lead.
//
//	frames   [segment][segment][segment]        appended at the end, freed at the front
//	entries  ring of {sequence, offset, links}  numbered from the start of the process
//	chains   stream → first, last entry         flows: session → first, last entry
//	markers  {sequence, chain}                  evicted in turn with the entries
//
// Appending and evicting are O(1). A cursor's place is found from its chain's
// newest entry backwards, in logarithmic time (see [links]), or at once by the number
// of the entry that was delivered last.
//
// What a window says holds for cursors at or above floor-1. The lock is never
// held across I/O.
type window struct {
	budget int

	mu     sync.RWMutex
	birth  string
	gens   []event.Generation
	frames segments
	ring   ring
	chains map[place]*chain
	// byNumber finds the stream of an entry; free are its unused places.
	byNumber []*chain
	free     []uint32
	// markers are those behind the floor, oldest first. A chain that has nothing else
	// is forgotten with its marker.
	markers []noted
	// trails are those of the newest events that are sampled.
	trails trails
	// floor: every event after floor-1 that the tail received is here.
	floor uint64
	// proved: from here on the tail saw every event come in without a jump.
	proved uint64
	// end: everything up to here that the tail will ever receive was received.
	end uint64
	// rollbacks holds, for every time the partition was rolled back, the newest
	// sequence that the lives before and after have in common. Every start of the
	// server counts: it may have been one behind what the window has seen.
	rollbacks []uint64
	caughtUp  bool
	oldest    uint64 // the oldest retained sequence when the backfill began

	skipped func(reason string) // counts what is not framed
}

// noted is a =close or =clear marker that a chain knows of.
type noted struct {
	sequence uint64
	chain    *chain
}

// notedBytes is what a marker costs, with the chain that may be there for its sake
// alone: names of the usual length, and a place in the map.
const notedBytes = 512

func newWindow(budget int, skipped func(reason string)) *window {
	return &window{budget: budget, frames: newSegments(budget), chains: map[place]*chain{}, floor: 1, proved: 1, skipped: skipped}
}

// reset empties the window and lets it begin after a sequence. floor is lower than
// after+1 only when the log holds nothing in between.
func (w *window) reset(state eventlog.State, after, floor uint64) {
	w.frames.clear()
	w.ring.clear()
	w.markers, w.trails = nil, nil
	for _, c := range w.chains {
		c.length, c.entries, c.lost, c.closed, c.clearedAt, c.prefix = 0, 0, 0, 0, 0, nil
		c.losses = nil
		c.wake()
		w.forget(c)
	}
	w.birth, w.gens = state.Birth, state.Generations
	w.floor, w.proved, w.end, w.oldest = floor, after+1, after, state.First
}

// begin prepares an empty window for a backfill.
func (w *window) begin(state eventlog.State, after, floor uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reset(state, after, floor)
}

// rollback empties the window, after a partition was rolled back to common, the
// newest sequence that both lives share.
func (w *window) rollback(state eventlog.State, after, floor, common uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rollbacks = append(w.rollbacks, common)
	w.reset(state, after, floor)
}

// goOn takes over the generations of a partition that was compared with the window
// and goes on behind it: later frames carry the newest. The window itself is as good
// as it was, but a reader may be ahead of it, and has to hear if the partition is not
// what it was there.
func (w *window) goOn(state eventlog.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(state, event.Fork(w.gens, state.Generations))
}

// extend takes over generations that were begun while the tail goes on, if they
// follow the window's own and begin behind its end. Otherwise the partition was
// rolled back: what the window holds is of the life before, and must not be given
// out under an ID of the new one. The tail will find that out and begin anew, unless
// it is on the same server already: then the generation was begun late, when no
// janitor was there at the start.
func (w *window) extend(state eventlog.State, sameServer bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gens) == 0 || w.birth != state.Birth || !slices.Contains(state.Generations, w.gens[len(w.gens)-1]) {
		return
	}
	if fork := event.Fork(w.gens, state.Generations); fork >= w.end || sameServer {
		w.take(state, fork)
	}
}

// take takes over generations. fork is the newest sequence that the partition has
// in common with what it was. The caller holds the lock.
func (w *window) take(state eventlog.State, fork uint64) {
	if fork != math.MaxUint64 {
		w.rollbacks = append(w.rollbacks, fork)
		for _, c := range w.chains {
			c.wake()
		}
	}
	w.birth, w.gens = state.Birth, state.Generations
}

// newest returns the sequences and store times of up to n of the newest entries,
// newest first.
func (w *window) newest(n int) (entries []entry, end uint64) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for i := w.ring.next; i > w.ring.first && len(entries) < n; i-- {
		entries = append(entries, *w.ring.at(i - 1))
	}
	return entries, w.end
}

// append takes in the next event of the partition. missed is how many sequences
// before it were removed unseen; incarnation is the session's, as far as known.
func (w *window) append(e eventlog.Entry, missed uint64, incarnation string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jump(e.Sequence, missed)
	w.end = e.Sequence
	if !e.Valid {
		return
	}
	switch e.Subject.Kind {
	case event.Close:
		w.close(e, incarnation)
	case event.Clear:
		w.clear(e)
	case event.Message:
		w.message(e, incarnation)
	}
}

// through moves the end when the log holds nothing more up to a sequence.
func (w *window) through(sequence, missed uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jump(sequence+1, missed)
	w.end = max(w.end, sequence)
	w.caughtUp = true
}

// jump lifts the proved floor when sequences before next were removed unseen.
func (w *window) jump(next, missed uint64) {
	if missed == 0 {
		return
	}
	w.proved = next
	if w.caughtUp {
		for _, c := range w.chains {
			c.wake() // each has to find out whether the missed events were its own
		}
	}
}

// chain returns the chain of a place, and makes it when there is none.
func (w *window) chain(p place) *chain {
	if c := w.chains[p]; c != nil {
		return c
	}
	c := &chain{place: p}
	w.chains[p] = c
	if p.stream == "" {
		return c
	}
	c.flow = w.chain(place{session: p.session})
	c.flow.streams++
	if n := len(w.free); n > 0 {
		c.number, w.free = w.free[n-1], w.free[:n-1]
		w.byNumber[c.number] = c
	} else {
		c.number = uint32(len(w.byNumber)) //nolint:gosec // chains in memory are fewer than 2³²
		w.byNumber = append(w.byNumber, c)
	}
	return c
}

// forget drops a chain that nothing needs any more.
func (w *window) forget(c *chain) {
	if !c.idle(w.floor) || w.chains[c.place] != c {
		return
	}
	delete(w.chains, c.place)
	if c.flow != nil {
		w.byNumber[c.number] = nil
		w.free = append(w.free, c.number)
		c.flow.streams--
		w.forget(c.flow)
	}
}

func (w *window) message(e eventlog.Entry, incarnation string) {
	stream := w.chain(place{e.Subject.Session, e.Subject.Stream})
	flow := stream.flow
	w.reopen(flow, incarnation)
	w.reopen(stream, incarnation)
	if stream.closed != 0 || flow.closed != 0 {
		w.skipped("closed")
		w.forget(stream)
		return
	}
	stream.retag(w.birth, w.gens[len(w.gens)-1].ID, incarnation)
	offset, size := w.frames.append(frameSize(stream.prefix, e.Type, e.Data), func(b []byte) []byte {
		return appendFrame(b, stream.prefix, e.Sequence, e.Type, e.Data)
	})
	en := entry{sequence: e.Sequence, time: e.Time.UnixNano(), offset: offset, size: size, chain: stream.number}
	if e.Trace.Sampled() {
		w.trails.add(e, stream)
		en.traced = true
	}
	n := w.ring.push(en)
	stream.entries++
	w.link(stream, n, streamLinks)
	w.link(flow, n, flowLinks)
	if e.Final {
		stream.closed, stream.closedOf = e.Sequence, incarnation
	}
	stream.wake()
	flow.wake()
	w.evict()
}

// reopen turns the end of an earlier session of the name into a clear: what came
// before belongs to that one.
func (w *window) reopen(c *chain, incarnation string) {
	if c.closed == 0 || c.closedOf == "" || incarnation == c.closedOf {
		return
	}
	end := c.closed
	c.closed = 0
	if c.flow == nil {
		w.loseAll(c)
	} else {
		w.lose(c)
	}
	c.lost = max(c.lost, end)
}

// link appends entry n to a chain.
func (w *window) link(c *chain, n uint64, of linksOf) {
	if c.length > 0 {
		distance := uint32(n - c.last) //nolint:gosec // entries in memory are fewer than 2³²
		own, before := of(w.ring.at(n)), of(w.ring.at(c.last))
		own.prev, before.next = distance, distance
		own.height = before.height + 1
		own.jump = uint32(n - w.jumpFrom(c, of)) //nolint:gosec // as above
	} else {
		c.first = n
	}
	c.last = n
	c.length++
}

// jumpFrom returns where the entry behind a chain's last one jumps to: to that, or
// over two trees of the same size that end there.
func (w *window) jumpFrom(c *chain, of linksOf) uint64 {
	last := of(w.ring.at(c.last))
	one := c.last - uint64(last.jump)
	if last.jump == 0 || one < c.first {
		return c.last
	}
	middle := of(w.ring.at(one))
	two := one - uint64(middle.jump)
	if middle.jump == 0 || two < c.first || last.height-middle.height != middle.height-of(w.ring.at(two)).height {
		return c.last
	}
	return two
}

// held is how many bytes the window takes.
func (w *window) held() int {
	return w.frames.held() + w.ring.bytes() + len(w.markers)*notedBytes
}

// note keeps a marker's chain until the marker is evicted.
func (w *window) note(sequence uint64, c *chain) {
	w.markers = append(w.markers, noted{sequence, c})
	w.evict()
}

// evict forgets the oldest entries and markers until the window is within its
// budget. The newest one stays, however large it is.
func (w *window) evict() {
	for w.held() > w.budget && w.ring.len()+len(w.markers) > 1 {
		if len(w.markers) > 0 && (w.ring.len() == 0 || w.markers[0].sequence < w.ring.at(w.ring.first).sequence) {
			old := w.markers[0]
			w.markers = w.markers[1:]
			w.floor = old.sequence + 1
			w.forget(old.chain)
			continue
		}
		old := *w.ring.at(w.ring.first)
		w.floor = old.sequence + 1
		stream := w.byNumber[old.chain]
		flow := stream.flow
		unlink(flow, w.ring.first, old.flow.next)
		if !old.dead {
			unlink(stream, w.ring.first, old.stream.next)
		}
		stream.entries--
		w.ring.pop()
		if w.ring.len() > 0 {
			w.frames.freeBefore(w.ring.at(w.ring.first).offset)
		} else {
			w.frames.clear()
		}
		w.forget(stream)
		w.forget(flow)
	}
}

// unlink takes the oldest entry off its chain.
func unlink(c *chain, n uint64, next uint32) {
	c.length--
	c.first = n + uint64(next)
}

func (w *window) close(e eventlog.Entry, incarnation string) {
	c := w.chain(place{e.Subject.Session, e.Subject.Stream})
	if c.closed == 0 {
		c.closed, c.closedOf = e.Sequence, incarnation
	}
	c.wake()
	if c.flow == nil {
		for _, s := range w.chains {
			if s.flow == c {
				s.wake()
			}
		}
	}
	w.note(e.Sequence, c)
}

// clear takes the events of a stream or session off the streams' chains. They are
// never sent again; their bytes go with the window's own eviction.
func (w *window) clear(e eventlog.Entry) {
	c := w.chain(place{e.Subject.Session, e.Subject.Stream})
	c.clearedAt = e.Sequence
	if c.flow == nil {
		w.loseAll(c)
	} else {
		w.lose(c)
	}
	c.wake()
	w.note(e.Sequence, c)
}

// loseAll empties the chains of a flow's streams.
func (w *window) loseAll(flow *chain) {
	before := flow.lost
	for _, s := range w.chains {
		if s.flow == flow {
			w.lose(s)
			s.wake()
		}
	}
	if flow.lost > before {
		flow.lose("", flow.lost, w.floor)
	}
}

// lose empties a stream's chain and remembers its newest event as lost.
func (w *window) lose(c *chain) {
	if c.flow == nil || c.length == 0 {
		return
	}
	c.lost = w.ring.at(c.last).sequence
	c.flow.lose(c.place.stream, c.lost, w.floor)
	n := c.first
	for range c.length {
		en := w.ring.at(n)
		en.dead = true
		n += uint64(en.stream.next)
	}
	c.length = 0
	c.wake()
	c.flow.wake()
}

// attach holds the chain of a place for a subscriber, so that it is not forgotten.
// incarnation is the session's now, empty when it is not registered: if the window
// saw an earlier session of the name end, that end is not this one's.
func (w *window) attach(p place, incarnation string) attachment {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.chain(p)
	if c.flow != nil {
		w.reopen(c.flow, incarnation)
	}
	w.reopen(c, incarnation)
	c.readers++
	return attachment{
		chain: c, birth: w.birth, gens: w.gens, end: w.end, rollbacks: len(w.rollbacks),
		unknown: c.flow != nil && c.length == 0 && c.closed == 0 && w.floor > w.oldest,
	}
}

// ended reports whether the window saw the end of a chain's place.
func (w *window) ended(c *chain) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return c.closed != 0 || c.flow != nil && c.flow.closed != 0
}

// subscribe has a worker told of what happens on a chain from now on.
func (w *window) subscribe(s *subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.chain.subs = append(s.chain.subs, s)
}

// unsubscribe ends that.
func (w *window) unsubscribe(s *subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.chain.subs = slices.DeleteFunc(s.chain.subs, func(other *subscription) bool { return other == s })
}

// attachment is what a new subscriber has to know of the window.
type attachment struct {
	chain     *chain
	birth     string
	gens      []event.Generation
	end       uint64
	rollbacks int
	// unknown says that there is nothing of the stream in a window that is not whole.
	unknown bool
}

// detach lets go of what attach returned.
func (w *window) detach(c *chain) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.readers--
	w.forget(c)
}

// stats is what a window holds.
type stats struct {
	events, bytes int
	floor, end    uint64
	ready         bool
}

func (w *window) stats() stats {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return stats{events: w.ring.len(), bytes: w.held(), floor: w.floor, end: w.end, ready: w.caughtUp}
}

// oldestOf returns the sequence of a chain's oldest event, when the window holds
// all that the log held when the backfill began.
func (w *window) oldestOf(c *chain) (sequence uint64, whole bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.floor > w.oldest {
		return 0, false
	}
	n := c.first
	for range c.length {
		en := w.ring.at(n)
		if !en.dead {
			return en.sequence, true
		}
		n += uint64(en.flow.next)
	}
	return 0, true
}
