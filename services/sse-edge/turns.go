package edge

import (
	"sync/atomic"

	"rejoin/shared/event"
)

// Of several connections to one stream, the newest one receives the messages; the others are
// quiet until it is their turn again.

// turns are a stream's part in this. It belongs to the stream's worker, but for quiet.
type turns struct {
	quiet atomic.Bool // another connection receives the messages
	// behind says that the client came without a cursor: it continues where the connection
	// before it is.
	behind bool
	// served says that it had its turn once.
	served bool
	// next is where to continue when it is the stream's turn again, once it has been quiet.
	next   *string
	rested chan<- string // takes its cursor once it is back
}

// waitTurn makes a stream that is not handed over yet quiet until its turn. One that is behind
// continues where the connection before it is.
func (st *stream) waitTurn(behind bool) {
	st.turns.behind, st.turns.served = behind, false
	st.turns.quiet.Store(true)
}

// turn gives the stream the messages from now on: after a cursor, if that is known.
func (st *stream) turn(cursor string) {
	st.worker.send(post{run: func() { st.worker.takeTurn(st, cursor) }})
}

// rest takes the messages from the stream, and has it send its cursor to rested, which has room.
func (st *stream) rest(rested chan<- string) {
	st.worker.send(post{run: func() { st.worker.rest(st, rested) }})
}

// isQuiet reports whether another connection receives the messages.
func (st *stream) isQuiet() bool { return st.turns.quiet.Load() }

// at returns the stream's cursor as text; empty when it has none that another one could use.
func (st *stream) at() string {
	if st.isQuiet() || st.reader.Fresh {
		return ""
	}
	return st.reader.ID(st.reader.Cursor)
}

// tellRested makes the stream quiet when somebody waits for that.
func (st *stream) tellRested() {
	t := &st.turns
	if t.rested == nil {
		return
	}
	t.rested <- st.at() // there is room
	t.rested = nil
	t.quiet.Store(true)
	if next := t.next; next != nil && !st.over() {
		t.next = nil
		st.turn(*next)
	}
}

// rest makes a stream quiet, at once unless the log is being read for it.
func (w *worker) rest(st *stream, rested chan<- string) {
	st.turns.rested = rested
	if st.phase != reading {
		st.tellRested()
	}
}

// takeTurn gives a stream the messages. A client that came with a cursor of its own continues
// there, one without where the connection before it was, and one that had its turn before
// there too, but never goes back.
func (w *worker) takeTurn(st *stream, cursor string) {
	t := &st.turns
	switch {
	case st.over():
		return
	case !t.quiet.Load() && t.rested != nil: // it is being read for, and is to be quiet first
		t.next = &cursor
		return
	case !t.quiet.Load():
		return
	}
	r := st.reader
	id, err := event.ParseID(cursor)
	if err == nil && r.ID(id.Sequence) == cursor && (t.behind || t.served && id.Sequence > r.Cursor) {
		r.MoveTo(id.Sequence)
		st.companion.moved()
	}
	t.behind, t.served = false, true
	t.quiet.Store(false)
	w.advance(st)
}

// endQuiet ends a quiet stream that has had its turn once the session or stream has ended.
func (w *worker) endQuiet(st *stream) {
	if st.turns.served && st.reader.HasEnd() {
		w.last(st, nil)
		w.end(st, "ended")
	}
}
