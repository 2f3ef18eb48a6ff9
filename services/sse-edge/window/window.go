// Package window holds the newest part of a partition in memory, for an edge to serve: finished
// SSE frames in large byte segments, an index of entries without pointers, and a chain of entries
// for each stream and each flow. Append adds the entries that the tail of the log receives, Read returns
// the events after a [ChainCursor], and a [Listener] is woken when a chain changes.
//
// It imports neither network nor logger, takes the time only for spans, and knows nothing of HTTP,
// MCP or access control.
package window

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"unsafe"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Window is the newest part of a partition in memory: finished frames in large
// byte segments, and an index of entries without pointers, through which one
// chain a stream and one a flow lead.
//
//	frames   [segment][segment][segment]        appended at the end, freed at the front
//	entries  ring of {sequence, offset, links}  numbered from the start of the process
//	chains   stream → first, last entry         flows: life → first, last entry
//	controls {sequence, chain}                  evicted in turn with the entries
//	names    session → its newest life          known from openings and events
//
// Appending and evicting are O(1). A cursor's entry is found from its chain's
// newest entry backwards, in logarithmic time (see [links]), or at once by the number
// of the entry that was delivered last.
//
// The answers of a window hold for cursors from start-1 on. The lock is never held across I/O.
//
// The window may hold events that the log no longer has. They are served: a client loses less
// than the limits say.
type Window struct {
	budget int

	mu     sync.RWMutex
	origin string
	gens   []event.Generation
	frames segments
	ring   ring
	chains map[Place]*Chain
	names  map[string]*lives
	// byNumber finds the stream of an entry; free are its unused numbers.
	byNumber []*Chain
	free     []uint32
	// controls are the control entries from start on, oldest first. A chain that has no other entries
	// is dropped with its last control entry.
	controls []control
	// chainBytes is the memory of the chains that have entries in the window. Chains that only
	// readers hold count with the readers.
	chainBytes int
	// watchers are called for each opening.
	watchers []Watcher
	// newest are the newest entries of any kind, oldest first.
	newest []Received
	// trails are those of the newest events that are sampled.
	trails trails
	// start is the oldest sequence that is not evicted: the window has every event from there on that
	// the tail received.
	start uint64
	// jumpEnd is where the last jump of the tail ended: from here on it received every event.
	jumpEnd uint64
	// end is the sequence that the tail has reached: it will receive no entry up to here any more.
	end uint64
	// forks has, for each generation that begins while the window runs, the newest sequence that the log
	// before and after have in common. Generations without a loss count: a started server may have had fewer
	// entries than the window.
	forks    []uint64
	caughtUp chan struct{} // see CaughtUp
	oldest   uint64        // the first sequence of the partition when the backfill began

	skipped func(reason string) // counts entries that cannot be read
}

// control is a control entry that a chain knows of: an opening, an end, a trim or a clear. No reader
// waits for the other kinds.
type control struct {
	sequence uint64
	chain    *Chain
}

// controlBytes is the memory of a control entry, besides its chain.
const controlBytes = int(unsafe.Sizeof(control{}))

// New returns an empty window of at most budget bytes; Begin follows. skipped counts entries
// that cannot be read, by what they should have been.
func New(budget int, skipped func(reason string)) *Window {
	return &Window{budget: budget, frames: newSegments(budget), chains: map[Place]*Chain{}, names: map[string]*lives{}, start: 1, jumpEnd: 1, caughtUp: make(chan struct{}), skipped: skipped}
}

// reset empties the window and lets it begin after a sequence. start is lower than
// after+1 only when the log holds nothing in between.
func (w *Window) reset(state eventlog.State, after, start uint64) {
	if w.hasCaughtUp() {
		w.caughtUp = make(chan struct{})
	}
	w.frames.clear()
	w.ring.clear()
	w.controls, w.trails, w.chainBytes, w.newest = nil, nil, 0, w.newest[:0]
	for _, n := range w.names {
		n.known, n.opening, n.Began = false, 0, 0 // the log may have lost the opening
	}
	for _, c := range w.chains {
		c.length, c.held, c.EndedAt, c.newestEndAt, c.clearedAt, c.trimmedAt, c.newestTrim, c.prefix = 0, 0, 0, 0, 0, 0, 0, nil
		c.lost, c.losses, c.lossesLeft, c.unsure = eventlog.Loss{}, nil, 0, eventlog.Loss{}
		c.wake()
		w.drop(c)
	}
	w.origin, w.gens = state.Origin, state.Generations
	w.start, w.jumpEnd, w.end, w.oldest = start, after+1, after, state.First
}

// Begin prepares an empty window for a backfill.
func (w *Window) Begin(state eventlog.State, after, start uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reset(state, after, start)
}

// Rollback empties the window, after a partition was rolled back to common, the
// newest sequence that the log before and after has in common.
func (w *Window) Rollback(state eventlog.State, after, start, common uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forks = append(w.forks, common)
	w.reset(state, after, start)
}

// GoOn takes over the generations of a partition after it was compared with the window, which then
// continues: later frames carry the newest. The window itself stays valid, but a reader may be ahead of it,
// and has to learn of a roll-back there.
func (w *Window) GoOn(state eventlog.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(state.Origin, state.Generations, w.end)
}

// Extend takes over generations that were begun while the tail runs, if they
// follow the window's own. It returns false, and takes none, if one begins before the
// window's end: the partition was rolled back, so the tail has to begin again. The
// window's events may be lost, and must not get IDs of the new generation.
func (w *Window) Extend(state eventlog.State) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gens) == 0 || w.origin != state.Origin || !event.HasGeneration(state.Generations, w.gens[len(w.gens)-1].ID) {
		return true
	}
	if event.Fork(w.gens, state.Generations) < w.end {
		return false
	}
	w.take(state.Origin, state.Generations, 0)
	return true
}

// takeFrom takes over the generation that begins with an entry, before the entries after it. The caller
// holds the lock.
func (w *Window) takeFrom(e eventlog.Entry) {
	if !event.HasGeneration(w.gens, e.Begins) {
		w.take(w.origin, event.NextGenerations(w.gens, event.Generation{ID: e.Begins, Start: e.Sequence}), 0)
	}
}

// take takes over generations; up to compared the partition has not changed. The caller holds the lock.
func (w *Window) take(origin string, gens []event.Generation, compared uint64) {
	if fork := event.Fork(w.gens, gens); fork != math.MaxUint64 {
		w.forks = append(w.forks, max(fork, compared))
		for _, c := range w.chains {
			c.wake()
		}
	}
	w.origin, w.gens = origin, gens
}

// Received is an entry of the log, of any kind, that the tail received.
type Received struct {
	Sequence uint64
	Time     int64 // of the store, in nanoseconds since 1970
}

// keepNewest is how many of the newest entries a window remembers.
const keepNewest = 8

// Newest returns the newest entries that the tail received since the window began, oldest first.
func (w *Window) Newest() []Received {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return slices.Clone(w.newest)
}

// Append adds the next entry of the partition. missed is how many sequences before it
// were removed unseen.
func (w *Window) Append(e eventlog.Entry, missed uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jump(e.Sequence, missed)
	w.end = e.Sequence
	if len(w.newest) == keepNewest {
		w.newest = slices.Delete(w.newest, 0, 1)
	}
	w.newest = append(w.newest, Received{e.Sequence, e.Time.UnixNano()})
	if e.Begins != "" {
		w.takeFrom(e)
	}
	if !e.Valid {
		return
	}
	switch e.Subject.Kind {
	case event.Open:
		w.onOpening(e)
	case event.End:
		w.onEnd(e)
	case event.Clear:
		w.onClear(e)
	case event.Trim:
		w.onTrim(e)
	case event.Message:
		w.message(e)
	case event.Birth, event.Seal: // no reader waits for these
	}
}

// Reach moves the end when the log holds no more entries up to a sequence.
func (w *Window) Reach(sequence, missed uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jump(sequence+1, missed)
	w.end = max(w.end, sequence)
	if w.hasCaughtUp() {
		return
	}
	close(w.caughtUp)
	for _, c := range w.chains {
		c.wake() // a jump before has woken no reader
	}
}

// CaughtUp returns a channel that is closed when the window holds the entries that the log held when the
// window began, or began again after a roll-back. Until then it lacks events, and its end is not the log's.
func (w *Window) CaughtUp() <-chan struct{} {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.caughtUp
}

// hasCaughtUp reports whether the channel of CaughtUp is closed. The caller holds the lock.
func (w *Window) hasCaughtUp() bool {
	select {
	case <-w.caughtUp:
		return true
	default:
		return false
	}
}

// jump notes that sequences before next were removed unseen.
func (w *Window) jump(next, missed uint64) {
	if missed == 0 {
		return
	}
	w.jumpEnd = next
	if w.hasCaughtUp() {
		for _, c := range w.chains {
			c.wake() // each has to find out whether the missed events were its own
		}
	}
}

// chain returns the chain of a place, and makes it when there is none.
func (w *Window) chain(p Place) *Chain {
	if c := w.chains[p]; c != nil {
		return c
	}
	c := &Chain{Place: p}
	w.chains[p] = c
	if p.Stream == "" {
		c.name = w.nameOf(p.Session)
		c.name.flows[p.Life] = c
		c.streams = map[string]*Chain{}
		if n := c.name; n.known && n.Life != p.Life {
			c.EndedAt = n.opening // another life of the name has ended this one
		}
		return c
	}
	c.flow = w.chain(Place{Session: p.Session, Life: p.Life})
	c.flow.streams[p.Stream] = c
	if n := len(w.free); n > 0 {
		c.number, w.free = w.free[n-1], w.free[:n-1]
		w.byNumber[c.number] = c
	} else {
		c.number = uint32(len(w.byNumber)) //nolint:gosec // chains in memory are fewer than 2³²
		w.byNumber = append(w.byNumber, c)
	}
	return c
}

// drop drops a chain that is not needed any more.
func (w *Window) drop(c *Chain) {
	if !c.idle(w.start) || w.chains[c.Place] != c {
		return
	}
	delete(w.chains, c.Place)
	if c.flow != nil {
		w.byNumber[c.number] = nil
		w.free = append(w.free, c.number)
		delete(c.flow.streams, c.Place.Stream)
		w.drop(c.flow)
		return
	}
	delete(c.name.flows, c.Place.Life)
	if len(c.name.flows) == 0 {
		delete(w.names, c.name.Session)
	}
}

// LifeOf returns the newest life of a session's name, as far as the window knows it. whole
// says that the window holds all entries of the session that the log has: then there is no
// life if none is known.
func (w *Window) LifeOf(session string) (life string, known, whole bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	whole = w.hasCaughtUp() && w.start <= w.oldest
	n := w.names[session]
	switch {
	case n == nil:
		return "", false, whole
	case n.known:
		return n.Life, true, whole
	}
	_, waited := n.flows[""]
	return "", false, whole && waited && len(n.flows) == 1 // or there is an end without its opening
}

// nameOf returns the record of a session's name, and makes it when there is none. The caller makes a chain of it.
func (w *Window) nameOf(session string) *lives {
	n := w.names[session]
	if n == nil {
		n = &lives{SessionView: SessionView{Session: session}, flows: map[string]*Chain{}}
		w.names[session] = n
	}
	return n
}

// noteLife notes the newest life of a session's name, as the log names it, and the sequence
// of the opening that does, 0 for an event. A newer opening ends all other lives.
// Chains that wait for the session take the first life that is known.
func (w *Window) noteLife(session, life string, opened uint64) {
	n := w.nameOf(session)
	switch {
	case n.known && opened <= n.opening:
		return
	case n.known && n.opening > 0 && n.Life == life: // the opening was written again
		n.opening = opened
		return
	}
	if !n.known && life != "" && n.flows[life] == nil {
		w.giveLife(n.flows[""], life)
	}
	if n.Life != life && n.Life != "" {
		n.Before, n.BeforeBegan = n.Life, n.Began
	}
	n.Life, n.known, n.opening, n.Began, n.Owner, n.Members = life, true, opened, opened, "", nil
	for other, flow := range n.flows {
		if other != life && opened > 0 {
			if flow.EndedAt == 0 {
				flow.EndedAt = opened
			}
			wakeAll(flow)
		}
	}
}

// giveLife gives a life to the chains that wait for a session and have no entries.
func (w *Window) giveLife(flow *Chain, life string) {
	if flow == nil || flow.length > 0 || len(flow.losses) > 0 {
		return
	}
	move := func(c *Chain) {
		delete(w.chains, c.Place)
		before := c.bytes()
		c.Place.Life, c.prefix = life, nil
		if c.held > 0 {
			w.chainBytes += c.bytes() - before
		}
		w.chains[c.Place] = c
		c.wake()
	}
	delete(flow.name.flows, "")
	flow.name.flows[life] = flow
	move(flow)
	for _, c := range flow.streams {
		move(c)
	}
}

// wakeAll wakes the readers of a flow and of its streams.
func wakeAll(flow *Chain) {
	flow.wake()
	for _, c := range flow.streams {
		c.wake()
	}
}

// onOpening adds an opening: the end of all other lives of its session's name.
func (w *Window) onOpening(e eventlog.Entry) {
	o, err := eventlog.OpeningIn(e)
	if err != nil {
		w.skipped("opening")
		return
	}
	w.noteLife(e.Subject.Session, o.Life, e.Sequence)
	n, flow := w.names[e.Subject.Session], w.chain(Place{Session: e.Subject.Session, Life: o.Life})
	if n.Life == o.Life { // else the log has named a later one, which the tail has yet to reach
		if n.Owner != o.Owner || !slices.Equal(n.Members, o.Members) {
			wakeAll(flow) // a reader that was refused may read it now
		}
		if n.Owner, n.Members = o.Owner, o.Members; n.Began == e.Sequence {
			n.Began = o.Began
		}
	}
	w.note(e.Sequence, flow)
	for _, watcher := range w.watchers {
		watcher.Opened(e.Subject.Session)
	}
}

func (w *Window) message(e eventlog.Entry) {
	w.noteLife(e.Subject.Session, e.Subject.Life, 0)
	stream := w.chain(Place{e.Subject.Session, e.Subject.Life, e.Subject.Stream})
	flow := stream.flow
	// The log decides: an event after an end means that the end does not hold.
	stream.EndedAt, flow.EndedAt = 0, 0
	stream.retag(w.origin, w.gens[len(w.gens)-1].ID)
	offset, size := w.frames.append(frameSize(stream.prefix, e.Type, e.Data), func(b []byte) []byte {
		return AppendFrame(b, stream.prefix, e.Sequence, e.Type, e.Data)
	})
	en := indexEntry{Sequence: e.Sequence, Time: e.Time.UnixNano(), offset: offset, size: size, chain: stream.number}
	if e.Trace.Sampled() {
		w.trails.add(e, stream)
		en.traced = true
	}
	n := w.ring.push(en)
	w.hold(stream, 1)
	w.link(stream, n, streamLinks)
	w.link(flow, n, flowLinks)
	if e.Final {
		stream.EndedAt = e.Sequence
	}
	stream.wake()
	flow.wake()
	w.evict()
}

// link appends entry n to a chain.
func (w *Window) link(c *Chain, n uint64, of linksOf) {
	if c.length > 0 {
		distance := uint32(n - c.last) //nolint:gosec // entries in memory are fewer than 2³²
		own, before := of(w.ring.at(n)), of(w.ring.at(c.last))
		own.prev, before.next = distance, distance
		own.height = before.height + 1
		own.skip = uint32(n - w.skipFrom(c, of)) //nolint:gosec // as above
	} else {
		c.first = n
	}
	c.last = n
	c.length++
}

// skipFrom returns where the entry after a chain's last one skips to: to that, or
// over two trees of the same size that end there.
func (w *Window) skipFrom(c *Chain, of linksOf) uint64 {
	last := of(w.ring.at(c.last))
	one := c.last - uint64(last.skip)
	if last.skip == 0 || one < c.first {
		return c.last
	}
	middle := of(w.ring.at(one))
	two := one - uint64(middle.skip)
	if middle.skip == 0 || two < c.first || last.height-middle.height != middle.height-of(w.ring.at(two)).height {
		return c.last
	}
	return two
}

// held is the memory of the window in bytes.
func (w *Window) held() int {
	return w.frames.total + w.ring.bytes() + len(w.controls)*controlBytes + w.chainBytes
}

// hold counts n entries more, or less, of a chain, and of its flow.
func (w *Window) hold(c *Chain, n int) {
	for ; c != nil; c = c.flow {
		before := c.held
		switch c.held += n; {
		case before == 0:
			w.chainBytes += c.bytes()
		case c.held == 0:
			w.chainBytes -= c.bytes()
		}
	}
}

// note keeps a chain until a control entry of it is evicted.
func (w *Window) note(sequence uint64, c *Chain) {
	w.controls = append(w.controls, control{sequence, c})
	w.hold(c, 1)
	w.evict()
}

// evict drops the oldest events and control entries until the window is within its
// budget. The newest one stays, however large it is.
func (w *Window) evict() {
	for w.held() > w.budget && w.ring.len()+len(w.controls) > 1 {
		if len(w.controls) > 0 && (w.ring.len() == 0 || w.controls[0].sequence < w.ring.at(w.ring.first).Sequence) {
			old := w.controls[0]
			w.controls = w.controls[1:]
			w.start = old.sequence + 1
			w.hold(old.chain, -1)
			w.drop(old.chain)
			continue
		}
		old := *w.ring.at(w.ring.first)
		w.start = old.Sequence + 1
		stream := w.byNumber[old.chain]
		flow := stream.flow
		unlink(flow, w.ring.first, old.flow.next)
		if !old.dead {
			unlink(stream, w.ring.first, old.stream.next)
		}
		w.hold(stream, -1)
		w.ring.pop()
		if w.ring.len() > 0 {
			w.frames.freeBefore(w.ring.at(w.ring.first).offset)
		} else {
			w.frames.clear()
		}
		w.drop(stream)
		w.drop(flow)
	}
}

// unlink takes the oldest entry off its chain.
func unlink(c *Chain, n uint64, next uint32) {
	c.length--
	c.first = n + uint64(next)
}

func (w *Window) onEnd(e eventlog.Entry) {
	c := w.chain(Place{e.Subject.Session, e.Subject.Life, e.Subject.Stream})
	if c.EndedAt == 0 {
		c.EndedAt = cmp.Or(e.Began, e.Sequence)
	}
	c.newestEndAt = e.Sequence
	wakeAll(c)
	w.note(e.Sequence, c)
}

// onClear takes the events of a stream or session off the streams' chains. They are
// never sent again; their bytes are freed when the window evicts them.
func (w *Window) onClear(e eventlog.Entry) {
	c := w.chain(Place{e.Subject.Session, e.Subject.Life, e.Subject.Stream})
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
func (w *Window) loseAll(flow *Chain) {
	all := eventlog.Loss{Reason: eventlog.Cleared, Certain: true}
	for _, s := range flow.streams {
		all.UpTo = max(all.UpTo, w.lose(s))
		s.wake()
	}
	if all.UpTo > 0 {
		flow.lose(all, w.start)
	}
}

// lose empties a stream's chain and remembers its newest event as lost. It returns the
// sequence of that event, or 0.
func (w *Window) lose(c *Chain) uint64 {
	if c.length == 0 {
		return 0
	}
	c.lose(eventlog.Loss{Stream: c.Place.Stream, UpTo: w.ring.at(c.last).Sequence, Reason: eventlog.Cleared, Certain: true}, w.start)
	n := c.first
	for range c.length {
		en := w.ring.at(n)
		en.dead = true
		n += uint64(en.stream.next)
	}
	c.length = 0
	c.wake()
	c.flow.wake()
	return c.lost.UpTo
}

// onTrim adds the announcement that events of a stream or a life are deleted. The window keeps
// those that it holds: only events on the list that were deleted before the tail reached them
// become a loss. A onTrim lies after all entries on its list, so the ones that the tail missed
// are known when the onTrim arrives.
func (w *Window) onTrim(e eventlog.Entry) {
	c := w.chain(Place{e.Subject.Session, e.Subject.Life, e.Subject.Stream})
	c.trimmedAt, c.newestTrim = e.Sequence, e.Sequence
	if c.flow != nil {
		c.flow.newestTrim = e.Sequence
	}
	if e.Trim == nil || !e.Trim.Holds(w.gens) {
		w.skipped("trim") // the removals that it would explain are damage; see reportDamaged of cursor
		w.note(e.Sequence, c)
		return
	}
	if n := w.names[e.Subject.Session]; e.Trim.Forgotten && n.Life == e.Subject.Life {
		n.Before, n.BeforeBegan = n.Life, n.Began
		n.Life, n.known, n.opening, n.Began = "", false, 0, 0 // no later reader belongs to it
	}
	if missed := w.newestMissed(e.Trim); missed > 0 {
		c.lose(eventlog.Loss{Stream: c.Place.Stream, UpTo: missed, Reason: e.Trim.Reason, Certain: c.flow != nil}, w.start)
		if c.flow == nil {
			wakeAll(c)
		} else {
			c.wake()
			c.flow.wake()
		}
	}
	w.note(e.Sequence, c)
}

// newestMissed returns the newest sequence of a trim's list, which is in order, that the tail did not
// receive though the window began before it; 0 when there is none. Control entries lie after UpTo.
func (w *Window) newestMissed(t *eventlog.Trim) uint64 {
	for _, sequence := range slices.Backward(t.Listed) {
		if sequence < w.start {
			return 0
		}
		if sequence > t.UpTo {
			continue
		}
		if sequence < w.jumpEnd && !w.ring.holds(sequence) {
			return sequence
		}
	}
	return 0
}

// Attach holds the chain of a place for a reader, so that it is not dropped. found
// says that the log named the place's life, with the opening at a sequence if that is not 0.
func (w *Window) Attach(p Place, found bool, opened uint64) Attachment {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.names[p.Session]
	if p.Life == "" && n != nil && (n.known || n.isFollowed()) {
		p.Life = n.Life // the session got a life since the log was asked, or a roll-back took the opening
	}
	if found || p.Life != "" && n != nil && !n.known && n.flows[""] != nil { // a life that readers wait for
		w.noteLife(p.Session, p.Life, opened)
	}
	c := w.chain(p)
	c.readers++
	return Attachment{Extent: w.extent(), Chain: c, Life: c.Place.Life, Gens: w.gens, Unknown: c.silent() && c.EndedAt == 0 && w.start > w.oldest}
}

// EndOf returns the sequence of the end of a chain's place; 0 when the window has none.
func (w *Window) EndOf(c *Chain) uint64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return c.end()
}

// Listen wakes a listener at each change of a chain from now on.
func (w *Window) Listen(c *Chain, l Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.listeners = append(c.listeners, l)
}

// Unlisten stops waking a listener.
func (w *Window) Unlisten(c *Chain, l Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.listeners = slices.DeleteFunc(c.listeners, func(other Listener) bool { return other == l })
}

// Watch calls a watcher at each opening from now on.
func (w *Window) Watch(watcher Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchers = append(w.watchers, watcher)
}

// Unwatch stops calling a watcher.
func (w *Window) Unwatch(watcher Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchers = slices.DeleteFunc(w.watchers, func(other Watcher) bool { return other == watcher })
}

// Attachment is the state of the window for a new reader.
type Attachment struct {
	Extent
	Chain *Chain
	Life  string
	Gens  []event.Generation
	// Unknown says that a window that is not whole has neither an event nor an end of the place.
	Unknown bool
}

// Detach releases a chain that Attach returned.
func (w *Window) Detach(c *Chain) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.readers--
	w.drop(c)
}

// Extent is the range of a window, and its log. Readers compare it with a look at the partition's leader.
type Extent struct {
	CaughtUp   bool   // see [Window.CaughtUp]
	Origin     string // of the partition
	Generation string // the newest
	Start      uint64
	JumpEnd    uint64 // where the last jump of the tail ended
	End        uint64
	Forks      int // how many there were
}

// Extent returns the window's present extent.
func (w *Window) Extent() Extent {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.extent()
}

func (w *Window) extent() Extent {
	x := Extent{CaughtUp: w.hasCaughtUp(), Origin: w.origin, Start: w.start, JumpEnd: w.jumpEnd, End: w.end, Forks: len(w.forks)}
	if len(w.gens) > 0 {
		x.Generation = w.gens[len(w.gens)-1].ID
	}
	return x
}

// Stats are the size and the extent of a window.
type Stats struct {
	Extent
	Events, Bytes int
}

// Stats returns the window's present size and extent.
func (w *Window) Stats() Stats {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return Stats{w.extent(), w.ring.len(), w.held()}
}

// OldestOf returns the sequence of a chain's oldest event, when the window holds
// all entries that the log held when the backfill began.
func (w *Window) OldestOf(c *Chain) (sequence uint64, whole bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.start > w.oldest {
		return 0, false
	}
	n := c.first
	for range c.length {
		en := w.ring.at(n)
		if !en.dead {
			return en.Sequence, true
		}
		n += uint64(en.flow.next)
	}
	return 0, true
}
