package delivery

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
)

// worker moves the cursors of a share of the event streams, in one goroutine.
//
//	window ── a chain changed ──▶ worker ── read of the window, writev that never waits ──▶ socket
//	                               │  ▲
//	          work that would wait ▼  │ back
//	                         a goroutine: a read of the log, or a socket that is full
//
// A chain that changes is queued once, however many events arrive and however many
// connections follow it. So load makes it cheaper: the later a worker reaches a
// connection, the more frames fit into one write. Connections of one chain with the
// same cursor are served from one read.
//
// A worker never waits: not for a socket, not for the log, not for a lock that is held across
// I/O. A connection that has to wait is away, in a goroutine that owns its reader until it is back
// (docs/adr/0006).
type worker struct {
	of   *Connections
	wake chan struct{} // holds a token while something is queued

	mu    sync.Mutex
	dirty []*chainListener // chains that have changed
	posts []func()

	// The fields below belong to the goroutine of run.
	listeners map[*window.Chain]*chainListener
	timers    timers
	more      []*Connection // with more events after their cursors than one write took
	items     []window.Item // memory for reads
	out       outbox        // of the present write
	shared    shared        // the read that out holds
	socket    sockets
	watch     stopwatch
	now       int64 // when it woke up, Unix time in milliseconds
}

// chainListener is one worker's [window.Listener] of one chain: the chain's changes queue it.
type chainListener struct {
	worker      *worker
	chain       *window.Chain
	queued      atomic.Bool   // it is in the worker's queue
	connections []*Connection // the worker's own
}

// Wake queues the listener, unless it is queued.
func (s *chainListener) Wake() {
	if s.queued.CompareAndSwap(false, true) {
		w := s.worker
		w.mu.Lock()
		w.dirty = append(w.dirty, s)
		w.mu.Unlock()
		w.rouse()
	}
}

func newWorker(s *Connections) *worker {
	return &worker{of: s, wake: make(chan struct{}, 1), listeners: map[*window.Chain]*chainListener{}}
}

// post has the worker call a function.
func (w *worker) post(f func()) {
	w.mu.Lock()
	w.posts = append(w.posts, f)
	w.mu.Unlock()
	w.rouse()
}

func (w *worker) rouse() {
	select {
	case w.wake <- struct{}{}:
	default: // it will wake up anyway
	}
}

// run works until stop is closed, by when every connection must have ended.
func (w *worker) run(stop <-chan struct{}) {
	drain, over := w.of.drain, w.of.cfg.Base.Done()
	clock := time.NewTimer(0)
	defer clock.Stop()
	var dirty []*chainListener
	var posts []func()
	for {
		if len(w.more) > 0 {
			w.rouse()
		} else {
			w.clear()
			clock.Reset(w.timers.wait(time.Now()))
		}
		select {
		case <-w.wake:
		case <-clock.C:
		case <-stop:
			return
		case <-drain:
			drain = nil
			w.drain()
		case <-over:
			over = nil
			w.endAll()
		}
		w.now, w.watch.n = time.Now().UnixMilli(), 0
		w.mu.Lock()
		dirty, w.dirty = w.dirty, dirty[:0]
		posts, w.posts = w.posts, posts[:0]
		w.mu.Unlock()
		for _, f := range posts {
			f()
		}
		for _, s := range dirty {
			s.queued.Store(false) // before it is read: a change from now on queues it again
			for _, c := range slices.Backward(s.connections) {
				w.advance(c)
			}
		}
		more := w.more
		w.more = nil
		for _, c := range more {
			w.advance(c)
		}
		w.tick(time.Now())
		clear(dirty)
		clear(posts)
	}
}

// adopt takes over a connection that is opening: from now on its client receives heartbeats.
func (w *worker) adopt(c *Connection) {
	now := time.Now()
	w.setTimes(c, now)
	heap.Push(&w.timers, c)
	select {
	case <-w.of.drain:
		w.drainOne(c, now)
	default:
	}
	if w.of.cfg.Base.Err() != nil {
		w.end(c, reasonDrain)
	}
}

// begin sends the first block of a connection and its first step: the worker listens to its chain first and reads on
// then, so that no change is missed.
func (w *worker) begin(c *Connection, first cursor.Step) {
	w.listen(c)
	c.Request.number, c.traffic.opened = w.of.numbers.Add(1), time.Now().UnixMilli()
	c.noteComing()
	c.Companion.Begun()
	heap.Fix(&w.timers, c.timer) // the companion may be due
	c.Head, c.first = append(c.Head, c.first...), nil
	w.serveOwn(c, first)
	w.advance(c)
}

// fail ends a connection that could not be opened, with the block that has its client reconnect.
func (w *worker) fail(c *Connection, err error) {
	w.of.cfg.SentAway(c.Request, c.Reader.Place, err)
	w.of.CountRefused("unavailable")
	if c.raw != nil {
		w.writeLast(c, c.Format.Farewell())
	}
	w.end(c, "failed")
}

// listen has changes of a connection's chain wake the worker.
func (w *worker) listen(c *Connection) {
	chain := c.source.Key()
	listener := w.listeners[chain]
	if listener == nil {
		listener = &chainListener{worker: w, chain: chain}
		w.listeners[chain] = listener
		c.source.Listen(listener)
	}
	c.listener, c.slot = listener, len(listener.connections)
	listener.connections = append(listener.connections, c)
}

// setTimes sets the time of a new connection's first heartbeat, and the time and reason of its end.
func (w *worker) setTimes(c *Connection, now time.Time) {
	cfg := w.of.cfg
	c.beatAt = now.Add(cfg.Heartbeat)
	// Added one after the other: with an age of a century and more, their sum or a product overflows.
	c.endAt = now.Add(cfg.MaxAge - cfg.MaxAge/10).Add(time.Duration(rand.Int64N(int64(cfg.MaxAge)/5 + 1))) //nolint:gosec // no secret
	c.endAtReason = "age"
	if c.Ageless {
		c.endAt = now.Add(forever)
	}
	if at := w.of.CutAt(c.Request); c.Continues && !at.IsZero() && at.Before(c.endAt) {
		c.endAt, c.endAtReason = at, reasonLimit
	}
	if !c.Expires.IsZero() {
		if c.expiring != nil {
			c.warnAt = c.Expires.Add(-expiryWarning)
		}
		if c.Expires.Before(c.endAt) {
			c.endAt, c.endAtReason = c.Expires, "expired"
		}
	}
}

// advance sends the events after a connection's cursor.
func (w *worker) advance(c *Connection) {
	switch {
	case c.IsOver(), !c.retryAt.IsZero(): // the log could not be read a moment ago
		return
	case c.IsQuiet():
		w.endQuiet(c)
		return
	case c.phase.away():
		c.again = true
		return
	case w.shared.serves(c):
		w.shared.read.Move(c.Reader)
		w.serve(c, w.shared.read.Step)
		return
	}
	w.clear()
	from := c.Reader.Cursor
	s, items, ok := c.source.Quick(w.items)
	w.items = items
	switch {
	case !ok:
		w.read(c)
	case s.Empty() && !s.More:
		c.phase = live
		c.allWritten()
	default:
		c.Filter.show(&s)
		w.out.fill(c, s)
		w.shared.keep(c, from, s)
		w.serve(c, s)
	}
}

// serve delivers the step of a read of the window, and takes the time if the connection was
// waiting for it.
func (w *worker) serve(c *Connection, s cursor.Step) {
	whole := w.writeStep(c, s)
	if !whole {
		return
	}
	if c.phase == live && len(s.Items) > 0 {
		w.of.Metrics.Delivery.Observe(w.watch.since(s.Items[0].Time))
	}
	if c.phase = live; s.More {
		c.phase = behind
	}
}

// serveOwn sends a step that is a connection's own.
func (w *worker) serveOwn(c *Connection, s cursor.Step) {
	s = c.UpToGap(s)
	c.written = min(c.written, c.Reader.ResumesAt(s)) // a roll-back moves the cursor back
	w.clear()
	c.Filter.show(&s)
	w.out.fill(c, s)
	w.writeStep(c, s)
	w.out.clear()
	c.source.Release()
	if !c.phase.away() { // else flush has counted the bytes that its socket did not take
		c.held.Release()
	}
}

// clear releases the items of the last read and the blocks made of them.
func (w *worker) clear() {
	w.shared = shared{}
	w.out.clear()
	clear(w.items)
	w.items = w.items[:0]
}

// writeStep writes the outbox, which holds a step, and reports whether all of it was
// written.
func (w *worker) writeStep(c *Connection, s cursor.Step) (whole bool) {
	n, err := 0, error(nil)
	if w.out.size > 0 { // or else all of it is hidden from the client
		n, err = w.writeNow(c)
		w.of.Metrics.sentBytes.Add(float64(n))
	}
	switch {
	case err != nil:
		w.end(c, "gone")
		return false
	case n < w.out.size:
		w.flush(c, s, n)
		return false
	}
	w.noteWritten(c, s, len(s.Items))
	c.allWritten()
	if s.Ended {
		w.end(c, "ended")
	} else if s.More {
		w.more = append(w.more, c)
	}
	return true
}

// writeNow writes as much of the outbox as a client's socket takes at once.
func (w *worker) writeNow(c *Connection) (int, error) {
	if now, ok := c.raw.(interface{ WriteNow([][]byte) (int, error) }); ok { // not a socket
		return now.WriteNow(w.out.buffers)
	}
	return w.socket.write(c.raw, w.out.buffers)
}

// noteWritten notes how much of a step was written; see [outbox.cut].
func (w *worker) noteWritten(c *Connection, s cursor.Step, told int) {
	c.traffic.wrote(min(told, len(s.Items)), w.now)
	c.Companion.Told(s, min(told, len(s.Items)))
	w.of.CountTold(c.Reader, s, told, c.Request)
}

// write writes a block of the connection's own making.
func (w *worker) write(c *Connection, block []byte) {
	w.clear()
	w.out.only(c, block, false)
	w.writeStep(c, cursor.Step{})
}

// read has a goroutine move a connection's cursor, since that takes more than a read of
// the window.
func (w *worker) read(c *Connection) {
	ctx, cancel := context.WithCancel(cursor.WithClient(w.of.cfg.Base, c.Request.Client))
	c.phase, c.cancel, c.traffic.stood = reading, cancel, c.Reader.Cursor
	go func() {
		defer cancel()
		c.Step, c.err = c.source.Next(ctx)
		w.post(func() { w.back(c) })
	}()
}

// flush has a goroutine write the rest of the frame that a full socket has cut after n bytes of the outbox, and
// moves the cursor back to the end of that frame: a slow client holds no more. Bytes that are in no window count,
// and the connection ends as a slow one if there is no memory for them.
func (w *worker) flush(c *Connection, s cursor.Step, n int) {
	length, told := w.out.cut(n)
	w.noteWritten(c, s, told)
	c.source.GoBack(s, told)
	if whole := min(told-1, len(s.Items)); whole > 0 {
		c.written = s.Items[whole-1].Sequence
	}
	w.of.Metrics.BlockedWrites.Inc()
	made := c.Format.Rewrites()
	inWindow, owned := false, length
	switch ofFrame := !made && 0 < told && told <= len(s.Items); {
	case length <= smallRest:
		owned = 0
	case ofFrame && s.Items[told-1].Segment != window.OfLog:
		inWindow, owned = true, 0
	case ofFrame:
		owned = len(s.Items[told-1].Frame) // the rest keeps all of it
	}
	if !c.hold(owned + c.source.Kept()) {
		w.end(c, "slow")
		return
	}
	if c.phase = flushing; s.Ended && told > len(s.Items) {
		c.phase = closing
	}
	var copied func(bytes int) bool
	if inWindow {
		copied = c.hold
	}
	rest := w.out.rest(n, length, made)
	w.of.Metrics.Blocked.Inc()
	go func() {
		c.err = writeAll(c.conn, rest, w.of.cfg.WriteTimeout, copied)
		w.of.Metrics.Blocked.Dec()
		w.of.Metrics.sentBytes.Add(float64(length))
		w.post(func() { w.back(c) })
	}()
}

func total(buffers [][]byte) (n int) {
	for _, b := range buffers {
		n += len(b)
	}
	return n
}

// back takes a connection back from its goroutine.
func (w *worker) back(c *Connection) {
	s, err, was := c.Step, c.err, c.phase
	c.Step, c.err, c.phase, c.cancel = cursor.Step{}, nil, behind, nil
	again, owesBeat, owesWarn := c.again, c.owesBeat, c.owesWarn
	c.again, c.owesBeat, c.owesWarn = false, false, false
	if was >= flushing && err == nil {
		c.allWritten()
	}
	switch {
	case c.IsOver():
		c.source.GoBack(s, 0) // the step was not sent
		w.release(c)
	case was == opening && err != nil:
		w.fail(c, err)
	case was == opening:
		w.begin(c, s)
	case was != reading && err != nil:
		w.end(c, reasonToEnd(err))
	case was == closing:
		w.end(c, "ended")
	case was == flushing:
		c.hold(c.source.Kept())
		w.advance(c)
	case err != nil:
		c.source.Release()
		c.held.Release()
		c.reportSilenced()
		if !errors.Is(err, context.Canceled) { // by silence
			w.of.Waits(c.Request.Ctx, "an event stream waits for the log", c.Reader.Place, err)
		}
		c.retryAt = time.Now().Add(logRetry)
		heap.Fix(&w.timers, c.timer)
	default:
		again = again || !s.Empty()
		w.serveOwn(c, s)
		c.reportSilenced()
		if again {
			w.more = append(w.more, c)
		}
	}
	if owesWarn {
		w.warn(c)
	}
	if owesBeat {
		w.beat(c)
	}
}

// end closes a connection's socket and takes the connection from the worker; reason is the metric's. Its resources are
// released once no goroutine has it.
func (w *worker) end(c *Connection, reason string) {
	if c.IsOver() {
		return
	}
	c.endReason = reason
	_ = c.conn.Close() // the client may have done so before
	heap.Remove(&w.timers, c.timer)
	if c.listener != nil {
		w.unlisten(c)
	}
	if c.cancel != nil {
		c.cancel()
	}
	if !c.phase.away() {
		w.release(c)
	}
}

// unlisten ends listen.
func (w *worker) unlisten(c *Connection) {
	listener := c.listener
	last := len(listener.connections) - 1
	listener.connections[last].slot = c.slot
	listener.connections[c.slot], listener.connections[last] = listener.connections[last], nil
	if listener.connections = listener.connections[:last]; last == 0 {
		delete(w.listeners, listener.chain)
		c.source.Unlisten(listener)
	}
}

// release releases the resources of a connection. It is not used after that.
func (w *worker) release(c *Connection) {
	c.log("a subscriber is gone", c.Reader.Cursor, c.endReason)
	c.source.Close()
	c.held.Release()
	w.of.Metrics.Connections.Dec()
	c.Companion.Ended(c.listener != nil)
	c.reportSilenced()
	w.of.Metrics.Closed.WithLabelValues(c.endReason).Inc()
	c.noteEnd()
	w.of.cfg.Admission.Leave(c.Request.Visit)
}

func (w *worker) endAll() {
	for len(w.timers) > 0 {
		w.end(w.timers[0], reasonDrain)
	}
}

// drain has every connection end at a moment of its own within the drain.
func (w *worker) drain() {
	now := time.Now()
	for _, c := range slices.Clone(w.timers) {
		w.drainOne(c, now)
	}
}

func (w *worker) drainOne(c *Connection, now time.Time) {
	drain := w.of.cfg.Drain
	at := now.Add(time.Duration(rand.Int64N(int64(drain) + 1))) //nolint:gosec // no secret
	switch {
	case c.Stays: // its client may not reconnect
		at = now.Add(drain)
	case c.HandsOver: // by the second half, proxies send the next request to another edge
		at = now.Add(drain/2 + at.Sub(now)/2)
	}
	if at.Before(c.endAt) {
		c.endAt, c.endAtReason = at, reasonDrain
		heap.Fix(&w.timers, c.timer)
	}
}

// tick acts on the connections that are due.
func (w *worker) tick(now time.Time) {
	for len(w.timers) > 0 {
		c := w.timers[0]
		switch due := c.due(); {
		case due.After(now):
			return
		case !c.endAt.After(now):
			w.sendAway(c)
		case !c.retryAt.IsZero() && !c.retryAt.After(now):
			c.retryAt = time.Time{}
			heap.Fix(&w.timers, c.timer)
			w.advance(c)
		case !c.warnAt.IsZero() && !c.warnAt.After(now):
			c.warnAt = time.Time{}
			heap.Fix(&w.timers, c.timer)
			w.advance(c) // so that it receives its newest cursor
			w.warn(c)
		case !c.Companion.Due().IsZero() && !c.Companion.Due().After(now):
			c.Companion.Tick(now)
			heap.Fix(&w.timers, c.timer)
		case c.Revoked != nil && c.Revoked():
			c.endAtReason = "revoked"
			w.sendAway(c)
		default:
			c.beatAt = now.Add(w.of.cfg.Heartbeat)
			heap.Fix(&w.timers, c.timer)
			w.advance(c) // no change woke it, but the end of the window may have moved
			w.beat(c)
		}
	}
}

// beat writes a heartbeat. One that is due during a read of the log follows the read: a backlog whose events are
// all hidden is read without a pause. During a longer read, and before the first block, it has no cursor. A connection
// that waits for its socket needs none.
func (w *worker) beat(c *Connection) {
	switch {
	case c.IsOver():
	case c.phase == opening, c.phase == reading && c.owesBeat:
		w.keepAlive(c)
	case c.phase == reading:
		c.owesBeat = true
	case !c.phase.away():
		w.write(c, c.Format.Heartbeat())
	}
}

// keepAlive writes a comment to a client for whose connection a goroutine reads the log. The bytes that its socket does
// not take are written before the next block.
func (w *worker) keepAlive(c *Connection) {
	w.clear()
	w.out.only(c, comment, false)
	n, err := w.writeNow(c)
	if err != nil {
		w.end(c, "gone")
		return
	}
	w.of.Metrics.sentBytes.Add(float64(n))
	c.Head = slices.Concat(w.out.rest(n, w.out.size-n, true)...)
}

// warn warns a client that its token is about to expire. While its connection is away, a frame may be unfinished, or
// the cursor is not the worker's: the warning follows.
func (w *worker) warn(c *Connection) {
	switch {
	case c.IsOver():
	case c.phase.away():
		c.owesWarn = true
	default:
		w.write(c, c.expiring())
	}
}

// sendAway ends a connection and sends the client a reconnection time. At a limit or in a drain, the worker waits
// until a client without a cursor has its first block: without a cursor it could not continue.
func (w *worker) sendAway(c *Connection) {
	waits := c.HandsOver && c.phase.away() || c.phase == opening && c.Reader.Came < cursor.FromWindow
	if waits && (c.endAtReason == reasonLimit || c.endAtReason == reasonDrain) {
		c.endAt = time.Now().Add(endAgain)
		heap.Fix(&w.timers, c.timer)
		return
	}
	w.writeLast(c, c.Format.Farewell())
	w.end(c, c.endAtReason)
}

// writeLast writes a connection's last block, if there is room for it in its socket and no frame
// is unfinished.
func (w *worker) writeLast(c *Connection, block []byte) {
	if c.phase >= flushing {
		return
	}
	w.clear()
	w.out.only(c, block, true)
	_, _ = w.writeNow(c) // or the client sees that it is not the end
}

// The reasons of a connection's end, besides its age and its token.
const (
	reasonDrain = "drain"
	reasonLimit = "limit"
)

// forever is longer than any connection lives.
const forever = 100 * 365 * 24 * time.Hour

const (
	// expiryWarning is how long before its token expires a client is warned.
	expiryWarning = time.Minute

	// endAgain is how long a connection that is away when it should end is left alone.
	endAgain = 100 * time.Millisecond
)

func reasonToEnd(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "slow"
	}
	return "gone"
}

// writeAll writes to a connection, and waits for as long as there is progress. If hold is not nil, the rest lies in
// a segment of the window that may be dropped, and clients that read slowly would hold a segment each: the bytes left
// after one time-out are copied, once hold counts them. The error is that of a stalled write if hold returns false.
func writeAll(conn net.Conn, rest net.Buffers, timeout time.Duration, hold func(bytes int) bool) error {
	for len(rest) > 0 {
		if err := conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		n, err := rest.WriteTo(conn)
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return err
		}
		if len(rest) > 0 && hold != nil {
			if !hold(total(rest)) {
				return os.ErrDeadlineExceeded
			}
			hold = nil
			for i, b := range rest {
				rest[i] = slices.Clone(b)
			}
		}
	}
	return conn.SetWriteDeadline(time.Time{})
}

// Do has the connection's worker call a function.
func (c *Connection) Do(f func()) { c.worker.post(f) }

// SendAll sends the window's events after the connection's cursor, and reports whether these were all and the
// connection still runs. Its worker calls it.
func (c *Connection) SendAll() bool {
	c.worker.advance(c)
	return (c.phase == live || c.IsQuiet() && !c.IsAway()) && !c.IsOver() && c.retryAt.IsZero()
}

// WriteEnd writes the end of the stream and ends the connection, as a step that ends it does. Its worker calls it, while
// the connection is not away.
func (c *Connection) WriteEnd() { c.worker.serveOwn(c, cursor.Step{Ended: true}) }

// shared is a read that serves every connection of a chain with the cursor from which it
// began: the worker's outbox holds its frames.
type shared struct {
	read     cursor.Shared
	listener *chainListener // nil: there is none
	format   string
	filter   string
	chunked  bool
}

func (s *shared) keep(c *Connection, from uint64, found cursor.Step) {
	*s = shared{format: c.Format.Kind(), chunked: c.Chunked, filter: c.Filter.name()}
	var ok bool
	if s.read, ok = c.Reader.Share(from, found); ok {
		s.listener = c.listener
	}
}

// serves reports whether a connection may be sent the content of the outbox. Any change
// that would give the connection's own reader another result wakes the chain, and so
// has queued the listener.
func (s *shared) serves(c *Connection) bool {
	return s.listener != nil && s.listener == c.listener && len(c.Head) == 0 && !s.listener.queued.Load() && s.read.Fits(c.Reader) &&
		c.Format.Kind() == s.format && c.Chunked == s.chunked && c.Filter.name() == s.filter
}
