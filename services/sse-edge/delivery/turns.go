package delivery

import (
	"sync/atomic"

	"rejoin/shared/event"
)

// Of several connections to one stream, the newest one receives the messages; the others are
// quiet until it is their turn again.

// turns is the state of a connection while several connections take turns: the newest one receives
// the messages. It belongs to the connection's worker, but for quiet.
type turns struct {
	quiet atomic.Bool // another connection receives the messages
	// WithoutCursor says that the client came without a cursor: it continues at the cursor of the
	// previous connection.
	WithoutCursor bool
	// served says that the connection had its turn once.
	served bool
	// next is the cursor to continue at when it is the connection's turn again, once it has been quiet.
	next     *string
	silenced chan<- string // takes its cursor once its read has ended
}

// WaitTurn makes a connection that is not handed over yet quiet until its turn. A client without a cursor
// continues at the cursor of the previous connection.
func (c *Connection) WaitTurn(withoutCursor bool) {
	c.Turns.WithoutCursor, c.Turns.served = withoutCursor, false
	c.Turns.quiet.Store(true)
}

// Turn gives the connection the messages from now on: after a cursor, if that is known.
func (c *Connection) Turn(cursor string) {
	c.Do(func() { c.worker.takeTurn(c, cursor) })
}

// Silence takes the messages from the connection, and has it send its cursor to a channel, which has room.
func (c *Connection) Silence(cursor chan<- string) {
	c.Do(func() { c.worker.silence(c, cursor) })
}

// IsQuiet reports whether another connection receives the messages.
func (c *Connection) IsQuiet() bool { return c.Turns.quiet.Load() }

// At returns the cursor up to which all events were written, as text; empty when another connection could not use it.
func (c *Connection) At() string {
	if c.IsQuiet() || c.Reader.Fresh {
		return ""
	}
	return c.Reader.ID(min(c.written, c.Reader.Cursor))
}

// reportSilenced makes the connection quiet when a caller of Silence waits for that.
func (c *Connection) reportSilenced() {
	t := &c.Turns
	if t.silenced == nil {
		return
	}
	t.silenced <- c.At() // there is room
	t.silenced = nil
	t.quiet.Store(true)
	if next := t.next; next != nil && !c.IsOver() {
		t.next = nil
		c.Turn(*next)
	}
}

// silence makes a connection quiet, at once unless the log is being read for it: such a read ends first.
func (w *worker) silence(c *Connection, cursor chan<- string) {
	if t := &c.Turns; t.silenced != nil { // another caller waits already: a later connection takes over from this one
		t.silenced <- "" // there is room
		t.next = nil
	}
	c.Turns.silenced = cursor
	if c.phase == reading {
		c.cancel() // it may wait for memory
	} else {
		c.reportSilenced()
	}
}

// takeTurn gives a connection the messages. A client with a cursor of its own continues there, one
// without at the cursor of the previous connection, and one that had its turn before there too, but
// never moves back.
func (w *worker) takeTurn(c *Connection, cursor string) {
	t := &c.Turns
	switch {
	case c.IsOver():
		return
	case !t.quiet.Load() && t.silenced != nil: // a goroutine reads for it, and it has to be quiet first
		t.next = &cursor
		return
	case !t.quiet.Load():
		return
	}
	r := c.Reader
	r.Renew() // a quiet connection does not read
	id, err := event.ParseID(cursor)
	if err == nil && r.ID(id.Sequence) == cursor && (t.WithoutCursor || t.served && id.Sequence > r.Cursor) {
		r.MoveTo(id.Sequence)
		c.allWritten()
		c.Companion.Moved()
	}
	t.WithoutCursor, t.served = false, true
	t.quiet.Store(false)
	w.advance(c)
}

// endQuiet ends a quiet connection that has had its turn once the session or stream has ended.
func (w *worker) endQuiet(c *Connection) {
	if c.Turns.served && c.Reader.HasEnd() {
		w.writeLast(c, nil)
		w.end(c, "ended")
	}
}
