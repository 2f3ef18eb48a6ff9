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
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
)

// worker moves the cursors of a share of the event streams, in one goroutine.
//
//	window ── a chain changed ──▶ worker ── look at the window, writev that never waits ──▶ socket
//	                               │  ▲
//	              what would wait  ▼  │ back
//	                         a goroutine: a read of the log, or a socket that is full
//
// A chain that changes is queued once, however many events come and however many
// streams follow it. So load makes it cheaper: the later a worker comes round to a
// stream, the more frames go into one write. Streams of one chain whose cursors
// stand at the same place are served from one read.
//
// A worker never waits: not for a socket, not for the log, not for a lock that is held across
// I/O. A stream that has to wait is away, in a goroutine that owns its reader until it is back
// (docs/adr/0006).
type worker struct {
	streams *Streams
	wake    chan struct{} // holds a token while something is queued

	mu    sync.Mutex
	dirty []*chainListener // chains that have changed
	posts []post

	// What follows belongs to the goroutine of run.
	listeners map[*window.Chain]*chainListener
	timers    timers
	more      []*Stream     // there is more after their cursors than one write took
	items     []window.Item // memory for reads
	out       outbox        // what is written
	shared    shared        // the read that out holds
	socket    sockets
	times     times // of deliveries in this round
	now       int64 // when it woke up, Unix time in milliseconds
}

// alwaysReady is a channel that can be received from at any time.
var alwaysReady = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

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

// post is news for a worker.
type post struct {
	stream *Stream
	what   news
	run    func() // with newsRun, which may be about no stream
}

// news is what a worker hears of.
type news uint8

const (
	newsRun    news = iota // the worker calls run
	newsHanded             // the stream is the worker's from now on: the first post of each
	newsBack               // it is back from where it had to wait
	newsGone               // its client has closed the connection
)

func newWorker(s *Streams) *worker {
	return &worker{streams: s, wake: make(chan struct{}, 1), listeners: map[*window.Chain]*chainListener{}}
}

func (w *worker) post(st *Stream, what news) { w.send(post{stream: st, what: what}) }

func (w *worker) send(p post) {
	w.mu.Lock()
	w.posts = append(w.posts, p)
	w.mu.Unlock()
	w.rouse()
}

func (w *worker) rouse() {
	select {
	case w.wake <- struct{}{}:
	default: // it will wake up anyway
	}
}

// run works until stop is closed, by when every stream must have ended.
func (w *worker) run(stop <-chan struct{}) {
	drain, over := w.streams.drain, w.streams.cfg.Base.Done()
	clock := time.NewTimer(0)
	defer clock.Stop()
	var dirty []*chainListener
	var posts []post
	for {
		var ready <-chan struct{}
		if len(w.more) > 0 {
			ready = alwaysReady
		} else {
			w.forget()
			clock.Reset(w.timers.wait(time.Now()))
		}
		select {
		case <-ready:
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
		w.now = time.Now().UnixMilli()
		w.mu.Lock()
		dirty, w.dirty = w.dirty, dirty[:0]
		posts, w.posts = w.posts, posts[:0]
		w.mu.Unlock()
		for _, p := range posts {
			w.hear(p)
		}
		for _, s := range dirty {
			s.queued.Store(false) // before it is read: a change from now on queues it again
			for _, st := range slices.Backward(s.streams) {
				w.advance(st)
			}
		}
		more := w.more
		w.more = nil
		for _, st := range more {
			w.advance(st)
		}
		w.tick(time.Now())
		w.streams.Metrics.Delivery.add(&w.times)
		clear(dirty)
		clear(posts)
	}
}

func (w *worker) hear(p post) {
	switch st := p.stream; p.what {
	case newsHanded:
		w.adopt(st)
	case newsBack:
		w.back(st)
	case newsGone:
		w.end(st, "gone")
	case newsRun:
		p.run()
	}
}

// adopt takes over a stream that is opening: from now on its client receives heartbeats.
func (w *worker) adopt(st *Stream) {
	now := time.Now()
	w.setTimes(st, now)
	heap.Push(&w.timers, st)
	select {
	case <-w.streams.drain:
		w.drainOne(st, now)
	default:
	}
	if w.streams.cfg.Base.Err() != nil {
		w.end(st, causeDrain)
	}
}

// begin sends the first block of a stream and what was read: the worker listens to its chain first and reads on
// then, so that no change is missed.
func (w *worker) begin(st *Stream, first cursor.Step) {
	w.listen(st)
	st.Request.number, st.traffic.opened = w.streams.numbers.Add(1), time.Now().UnixMilli()
	st.noteComing()
	if st.Companion != nil {
		st.Companion.Begun()
		heap.Fix(&w.timers, st.timer) // it may have something to do
	}
	st.Head, st.first = append(st.Head, st.first...), nil
	w.serveOwn(st, first)
	w.advance(st)
}

// fail sends a client away whose stream could not be opened.
func (w *worker) fail(st *Stream, err error) {
	w.streams.cfg.SentAway(st.Request, st.Reader.Place, err)
	w.streams.CountRefused("unavailable")
	if st.raw != nil {
		w.last(st, st.Format.Farewell())
	}
	w.end(st, "failed")
}

// listen has changes of a stream's chain wake the worker.
func (w *worker) listen(st *Stream) {
	c := st.source.Key()
	listener := w.listeners[c]
	if listener == nil {
		listener = &chainListener{worker: w, chain: c}
		w.listeners[c] = listener
		st.source.Listen(listener)
	}
	st.listener, st.slot = listener, len(listener.streams)
	listener.streams = append(listener.streams, st)
}

// setTimes sets when a stream that begins gets its first heartbeat, and when it ends and why.
func (w *worker) setTimes(st *Stream, now time.Time) {
	cfg := w.streams.cfg
	st.beatAt = now.Add(cfg.Heartbeat)
	// Added one after the other: with an age of a century and more, their sum or a product overflows.
	st.endAt = now.Add(cfg.MaxAge - cfg.MaxAge/10).Add(time.Duration(rand.Int64N(int64(cfg.MaxAge)/5 + 1))) //nolint:gosec // no secret
	st.cause = "age"
	if st.Ageless {
		st.endAt = now.Add(forever)
	}
	if at := w.streams.CutAt(st.Request); st.Continues && !at.IsZero() && at.Before(st.endAt) {
		st.endAt, st.cause = at, causeLimit
	}
	if !st.Expires.IsZero() {
		if st.expiring != nil {
			st.warnAt = st.Expires.Add(-expiryWarning)
		}
		if st.Expires.Before(st.endAt) {
			st.endAt, st.cause = st.Expires, "expired"
		}
	}
}

// advance sends what follows a stream's cursor.
func (w *worker) advance(st *Stream) {
	switch {
	case st.IsOver(), !st.retryAt.IsZero(): // the log could not be read a moment ago
		return
	case st.IsQuiet():
		w.endQuiet(st)
		return
	case st.phase.away():
		st.again = true
		return
	case w.shared.serves(st):
		w.shared.read.Move(st.Reader)
		w.serve(st, w.shared.read.Step)
		return
	}
	w.forget()
	from := st.Reader.Cursor
	s, items, ok := st.source.Quick(w.items)
	w.items = items
	switch {
	case !ok:
		w.read(st)
	case s.Empty() && !s.More:
		st.phase = live
		st.allWritten()
	default:
		st.Filter.show(&s)
		w.out.fill(st, s)
		w.shared.keep(st, from, s)
		w.serve(st, s)
	}
}

// serve delivers what a look at the window found, and takes the time if the stream was
// waiting for it.
func (w *worker) serve(st *Stream, s cursor.Step) {
	whole := w.writeStep(st, s)
	if !whole {
		return
	}
	if st.phase == live && len(s.Items) > 0 {
		w.times.delivered(s.Items[0].Time)
	}
	if st.phase = live; s.More {
		st.phase = behind
	}
}

// serveOwn sends a step that is a stream's own.
func (w *worker) serveOwn(st *Stream, s cursor.Step) {
	s = st.UpToGap(s)
	st.written = min(st.written, st.Reader.ResumesAt(s)) // a roll-back moves the cursor back
	w.forget()
	st.Filter.show(&s)
	w.out.fill(st, s)
	w.writeStep(st, s)
	w.out.clear()
	st.source.Release()
	if !st.phase.away() { // else flush has counted what its socket did not take
		st.held.Release()
	}
}

// forget lets go of what the last read found and what was made of it.
func (w *worker) forget() {
	w.shared = shared{}
	w.out.clear()
	clear(w.items)
	w.items = w.items[:0]
}

// writeStep writes the outbox, which holds a step, and reports whether all of it was
// written.
func (w *worker) writeStep(st *Stream, s cursor.Step) (whole bool) {
	n, err := 0, error(nil)
	if w.out.size > 0 { // or else all of it is hidden from the client
		n, err = w.writeNow(st)
		w.streams.Metrics.sentBytes.Add(float64(n))
	}
	switch {
	case err != nil:
		w.end(st, "gone")
		return false
	case n < w.out.size:
		w.flush(st, s, n)
		return false
	}
	w.noteWritten(st, s, len(s.Items))
	st.allWritten()
	if s.Ended {
		w.end(st, "ended")
	} else if s.More {
		w.more = append(w.more, st)
	}
	return true
}

// writeNow writes as much of the outbox as a stream's connection takes at once.
func (w *worker) writeNow(st *Stream) (int, error) {
	if now, ok := st.raw.(interface{ WriteNow([][]byte) (int, error) }); ok { // not a socket
		return now.WriteNow(w.out.buffers)
	}
	return w.socket.write(st.raw, w.out.buffers)
}

// noteWritten notes how much of a step was written; see [outbox.cut].
func (w *worker) noteWritten(st *Stream, s cursor.Step, told int) {
	st.traffic.wrote(min(told, len(s.Items)), w.now)
	if st.Companion != nil {
		st.Companion.Told(s, min(told, len(s.Items)))
	}
	w.streams.CountTold(st.Reader, s, told, st.Request)
}

// write writes a block of the stream's own making.
func (w *worker) write(st *Stream, block []byte) {
	w.forget()
	w.out.only(st, block, false)
	w.writeStep(st, cursor.Step{})
}

// read has a stream's cursor moved by a goroutine, since that takes more than a look
// at the window.
func (w *worker) read(st *Stream) {
	ctx, cancel := context.WithCancel(cursor.WithClient(w.streams.cfg.Base, st.Request.Client))
	st.phase, st.cancel, st.traffic.stood = reading, cancel, st.Reader.Cursor
	go func() {
		defer cancel()
		st.Step, st.err = st.source.Next(ctx)
		w.post(st, newsBack)
	}()
}

// flush has a goroutine write the rest of the frame that a full socket has cut after n bytes of the outbox, and
// moves the cursor back to the end of that frame: a slow client holds no more. What lies in no window counts, and
// the stream ends as a slow one if there is no memory for it.
func (w *worker) flush(st *Stream, s cursor.Step, n int) {
	length, told := w.out.cut(n)
	w.noteWritten(st, s, told)
	st.source.GoBack(s, told)
	if whole := min(told-1, len(s.Items)); whole > 0 {
		st.written = s.Items[whole-1].Sequence
	}
	w.streams.Metrics.BlockedWrites.Inc()
	made := st.Format.Rewrites()
	inWindow, owned := false, length
	switch ofFrame := !made && 0 < told && told <= len(s.Items); {
	case length <= smallRest:
		owned = 0
	case ofFrame && s.Items[told-1].Segment != window.OfLog:
		inWindow, owned = true, 0
	case ofFrame:
		owned = len(s.Items[told-1].Frame) // the rest keeps all of it
	}
	if !st.hold(owned + st.source.Kept()) {
		w.end(st, "slow")
		return
	}
	if st.phase = flushing; s.Ended && told > len(s.Items) {
		st.phase = closing
	}
	var copied func(bytes int) bool
	if inWindow {
		copied = st.hold
	}
	rest := w.out.rest(n, length, made)
	w.streams.Metrics.Blocked.Inc()
	go func() {
		st.err = flush(st.conn, rest, w.streams.cfg.WriteTimeout, copied)
		w.streams.Metrics.Blocked.Dec()
		w.streams.Metrics.sentBytes.Add(float64(length))
		w.post(st, newsBack)
	}()
}

func total(buffers [][]byte) (n int) {
	for _, b := range buffers {
		n += len(b)
	}
	return n
}

// back takes a stream back from its goroutine.
func (w *worker) back(st *Stream) {
	s, err, was := st.Step, st.err, st.phase
	st.Step, st.err, st.phase, st.cancel = cursor.Step{}, nil, behind, nil
	again, owesBeat, owesWarn := st.again, st.owesBeat, st.owesWarn
	st.again, st.owesBeat, st.owesWarn = false, false, false
	if was >= flushing && err == nil {
		st.allWritten()
	}
	switch {
	case st.IsOver():
		st.source.GoBack(s, 0) // what was read was not sent
		w.finish(st)
	case was == opening && err != nil:
		w.fail(st, err)
	case was == opening:
		w.begin(st, s)
	case was != reading && err != nil:
		w.end(st, reasonToEnd(err))
	case was == closing:
		w.end(st, "ended")
	case was == flushing:
		st.hold(st.source.Kept())
		w.advance(st)
	case err != nil:
		st.source.Release()
		st.held.Release()
		st.tellRested()
		if !errors.Is(err, context.Canceled) { // by rest
			w.streams.Waits(st.Request.Ctx, "an event stream waits for the log", st.Reader.Place, err)
		}
		st.retryAt = time.Now().Add(logRetry)
		heap.Fix(&w.timers, st.timer)
	default:
		again = again || !s.Empty()
		w.serveOwn(st, s)
		st.tellRested()
		if again {
			w.more = append(w.more, st)
		}
	}
	if owesWarn {
		w.warn(st)
	}
	if owesBeat {
		w.beat(st)
	}
}

// end ends a stream; reason is the metric's.
func (w *worker) end(st *Stream, reason string) {
	if st.IsOver() {
		return
	}
	st.reason = reason
	_ = st.conn.Close() // the client may have done so before
	heap.Remove(&w.timers, st.timer)
	if st.listener != nil {
		w.unlisten(st)
	}
	if st.cancel != nil {
		st.cancel()
	}
	if !st.phase.away() {
		w.finish(st)
	}
}

// unlisten ends what listen began.
func (w *worker) unlisten(st *Stream) {
	listener := st.listener
	last := len(listener.streams) - 1
	listener.streams[last].slot = st.slot
	listener.streams[st.slot], listener.streams[last] = listener.streams[last], nil
	if listener.streams = listener.streams[:last]; last == 0 {
		delete(w.listeners, listener.chain)
		st.source.Unlisten(listener)
	}
}

// finish releases what a stream held. It is not used after that.
func (w *worker) finish(st *Stream) {
	st.logEnd()
	st.source.Close()
	st.held.Release()
	w.streams.Metrics.Connections.Dec()
	if st.Companion != nil {
		st.Companion.Ended(st.listener != nil)
	}
	st.tellRested()
	w.streams.Metrics.Closed.WithLabelValues(st.reason).Inc()
	st.noteEnd()
	w.streams.cfg.Admission.Leave(st.Request.Visit)
}

func (w *worker) endAll() {
	for len(w.timers) > 0 {
		w.end(w.timers[0], causeDrain)
	}
}

// drain has every stream end at a moment of its own within the drain.
func (w *worker) drain() {
	now := time.Now()
	for _, st := range slices.Clone(w.timers) {
		w.drainOne(st, now)
	}
}

func (w *worker) drainOne(st *Stream, now time.Time) {
	drain := w.streams.cfg.Drain
	at := now.Add(time.Duration(rand.Int64N(int64(drain) + 1))) //nolint:gosec // no secret
	switch {
	case st.Stays: // its client may not come back
		at = now.Add(drain)
	case st.HandsOver: // by the second half, proxies send the next request to another edge
		at = now.Add(drain/2 + at.Sub(now)/2)
	}
	if at.Before(st.endAt) {
		st.endAt, st.cause = at, causeDrain
		heap.Fix(&w.timers, st.timer)
	}
}

// tick does what is due.
func (w *worker) tick(now time.Time) {
	for len(w.timers) > 0 {
		st := w.timers[0]
		switch due := st.due(); {
		case due.After(now):
			return
		case !st.endAt.After(now):
			w.sendAway(st)
		case !st.retryAt.IsZero() && !st.retryAt.After(now):
			st.retryAt = time.Time{}
			heap.Fix(&w.timers, st.timer)
			w.advance(st)
		case !st.warnAt.IsZero() && !st.warnAt.After(now):
			st.warnAt = time.Time{}
			heap.Fix(&w.timers, st.timer)
			w.advance(st) // so that it receives its newest cursor
			w.warn(st)
		case st.Companion != nil && !st.Companion.Due().IsZero() && !st.Companion.Due().After(now):
			st.Companion.Tick(now)
			heap.Fix(&w.timers, st.timer)
		case st.Revoked != nil && st.Revoked():
			st.cause = "revoked"
			w.sendAway(st)
		default:
			st.beatAt = now.Add(w.streams.cfg.Heartbeat)
			heap.Fix(&w.timers, st.timer)
			w.advance(st) // nothing woke it, and the end of the window has moved on all the same
			w.beat(st)
		}
	}
}

// beat writes a heartbeat. One that is due during a read of the log follows the read: a backlog whose events are
// all hidden is read without a pause. During a longer read, and before the first block, it has no cursor. A stream
// that waits for its socket needs none.
func (w *worker) beat(st *Stream) {
	switch {
	case st.IsOver():
	case st.phase == opening, st.phase == reading && st.owesBeat:
		w.keepAlive(st)
	case st.phase == reading:
		st.owesBeat = true
	case !st.phase.away():
		w.write(st, st.Format.Heartbeat())
	}
}

// keepAlive writes a comment to a client for whose stream a goroutine reads the log. What its socket does not take
// is written before what follows.
func (w *worker) keepAlive(st *Stream) {
	w.forget()
	w.out.only(st, comment, false)
	n, err := w.writeNow(st)
	if err != nil {
		w.end(st, "gone")
		return
	}
	w.streams.Metrics.sentBytes.Add(float64(n))
	st.Head = slices.Concat(w.out.rest(n, w.out.size-n, true)...)
}

// warn tells a client that its token is about to expire. While its stream is away, a frame may be unfinished, or
// the cursor is not the worker's: the warning follows.
func (w *worker) warn(st *Stream) {
	switch {
	case st.IsOver():
	case st.phase.away():
		st.owesWarn = true
	default:
		w.write(st, st.expiring())
	}
}

// sendAway ends a stream and tells the client when to come back. At a limit or in a drain, a client without a
// cursor is waited for until it has its first block: without one it could not continue.
func (w *worker) sendAway(st *Stream) {
	waits := st.HandsOver && st.phase.away() || st.phase == opening && st.Reader.Came < cursor.FromWindow
	if waits && (st.cause == causeLimit || st.cause == causeDrain) {
		st.endAt = time.Now().Add(endAgain)
		heap.Fix(&w.timers, st.timer)
		return
	}
	w.last(st, st.Format.Farewell())
	w.end(st, st.cause)
}

// last writes a stream's last block, if there is room for it in its socket and no frame
// is unfinished.
func (w *worker) last(st *Stream, block []byte) {
	if st.phase >= flushing {
		return
	}
	w.forget()
	w.out.only(st, block, true)
	_, _ = w.writeNow(st) // or the client sees that it is not the end
}

// What a stream's end is due to, besides its age and its token.
const (
	causeDrain = "drain"
	causeLimit = "limit"
)

// forever is longer than any connection lives.
const forever = 100 * 365 * 24 * time.Hour

const (
	// expiryWarning is how long before its token expires a client is warned.
	expiryWarning = time.Minute

	// endAgain is how long a stream that is away when it should end is left alone.
	endAgain = 100 * time.Millisecond
)

func reasonToEnd(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "slow"
	}
	return "gone"
}

// flush writes to a connection, and waits for as long as there is progress. If hold is not nil, the rest lies in
// a segment of the window that may be dropped, and clients that read slowly would hold a segment each: what is left
// after one time-out is copied, once hold has it count. The error is that of a stalled write if hold says no.
func flush(conn net.Conn, rest net.Buffers, timeout time.Duration, hold func(bytes int) bool) error {
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

// Do has the stream's worker call a function.
func (st *Stream) Do(f func()) { st.worker.send(post{run: f}) }

// SendAll sends what the window has after the stream's cursor, and reports whether that was all and the stream
// still runs. Its worker calls it.
func (st *Stream) SendAll() bool {
	st.worker.advance(st)
	return (st.phase == live || st.IsQuiet() && !st.IsAway()) && !st.IsOver() && st.retryAt.IsZero()
}

// Finish ends the stream as a step that ends it does. Its worker calls it, while the stream is not
// away.
func (st *Stream) Finish() { st.worker.serveOwn(st, cursor.Step{Ended: true}) }

// shared is a read that serves every stream of a chain whose cursor stands where it
// began: the worker's outbox holds its frames.
type shared struct {
	read     cursor.Shared
	listener *chainListener // nil: there is none
	format   string
	filter   string
	chunked  bool
}

func (s *shared) keep(st *Stream, from uint64, found cursor.Step) {
	*s = shared{format: st.Format.Kind(), chunked: st.Chunked, filter: st.Filter.name()}
	var ok bool
	if s.read, ok = st.Reader.Share(from, found); ok {
		s.listener = st.listener
	}
}

// serves reports whether a stream may be sent what the outbox holds. Whatever could
// make a reader of its own see something else wakes the chain, and so has queued
// the listener.
func (s *shared) serves(st *Stream) bool {
	return s.listener != nil && s.listener == st.listener && len(st.Head) == 0 && !s.listener.queued.Load() && s.read.Fits(st.Reader) &&
		st.Format.Kind() == s.format && st.Chunked == s.chunked && st.Filter.name() == s.filter
}
