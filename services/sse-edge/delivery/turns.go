package delivery

import (
	"rejoin/shared/event"
)

// Of several connections to one stream, the newest one receives the messages; the others are
// quiet until it is their turn again.

// WaitTurn makes a stream that is not handed over yet quiet until its turn. One that is behind
// continues where the connection before it is.
func (st *Stream) WaitTurn(behind bool) {
	st.Turns.Behind, st.Turns.served = behind, false
	st.Turns.quiet.Store(true)
}

// Turn gives the stream the messages from now on: after a cursor, if that is known.
func (st *Stream) Turn(cursor string) {
	st.worker.send(post{run: func() { st.worker.takeTurn(st, cursor) }})
}

// Rest takes the messages from the stream, and has it send its cursor to rested, which has room.
func (st *Stream) Rest(rested chan<- string) {
	st.worker.send(post{run: func() { st.worker.rest(st, rested) }})
}

// IsQuiet reports whether another connection receives the messages.
func (st *Stream) IsQuiet() bool { return st.Turns.quiet.Load() }

// At returns the cursor up to which everything was written, as text; empty when another connection could not use it.
func (st *Stream) At() string {
	if st.IsQuiet() || st.Reader.Fresh {
		return ""
	}
	return st.Reader.ID(min(st.written, st.Reader.Cursor))
}

// tellRested makes the stream quiet when somebody waits for that.
func (st *Stream) tellRested() {
	t := &st.Turns
	if t.rested == nil {
		return
	}
	t.rested <- st.At() // there is room
	t.rested = nil
	t.quiet.Store(true)
	if next := t.next; next != nil && !st.IsOver() {
		t.next = nil
		st.Turn(*next)
	}
}

// rest makes a stream quiet, at once unless the log is being read for it: such a read ends first.
func (w *worker) rest(st *Stream, rested chan<- string) {
	if t := &st.Turns; t.rested != nil { // somebody waits already, and a later connection takes over from it
		t.rested <- "" // there is room
		t.next = nil
	}
	st.Turns.rested = rested
	if st.phase == reading {
		st.cancel() // it may wait for memory
	} else {
		st.tellRested()
	}
}

// takeTurn gives a stream the messages. A client that came with a cursor of its own continues
// there, one without where the connection before it was, and one that had its turn before
// there too, but never goes back.
func (w *worker) takeTurn(st *Stream, cursor string) {
	t := &st.Turns
	switch {
	case st.IsOver():
		return
	case !t.quiet.Load() && t.rested != nil: // it is being read for, and is to be quiet first
		t.next = &cursor
		return
	case !t.quiet.Load():
		return
	}
	r := st.Reader
	r.Renew() // while it was quiet it did not read
	id, err := event.ParseID(cursor)
	if err == nil && r.ID(id.Sequence) == cursor && (t.Behind || t.served && id.Sequence > r.Cursor) {
		r.MoveTo(id.Sequence)
		st.allWritten()
		st.Companion.Moved()
	}
	t.Behind, t.served = false, true
	t.quiet.Store(false)
	w.advance(st)
}

// endQuiet ends a quiet stream that has had its turn once the session or stream has ended.
func (w *worker) endQuiet(st *Stream) {
	if st.Turns.served && st.Reader.HasEnd() {
		w.last(st, nil)
		w.end(st, "ended")
	}
}
