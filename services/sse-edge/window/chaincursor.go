package window

// ChainCursor is a reader's cursor on a chain, with the state of the window that the reader has seen.
// It is not safe for concurrent use.
type ChainCursor struct {
	Chain  *Chain
	Cursor uint64
	// Rollbacks is how many of the window's roll-backs the reader has seen.
	Rollbacks int
	// LastNumber is the number of the window's entry that was returned last.
	LastNumber uint64
	// Dropped holds, on a flow, up to which sequence a stream's events are gone, so that
	// older ones that are still in the window are not sent.
	Dropped map[string]uint64
}

// DroppedTo returns up to which sequence a stream's events are not sent any more.
func (c *ChainCursor) DroppedTo(stream string) uint64 { return max(c.Cursor, c.Dropped[stream]) }

// Watcher hears of the openings that a window takes in. Opened must not block: the window's lock is
// held.
type Watcher interface{ Opened(session string) }

// Listener is woken when a chain has changed. Wake must not block: the window's lock is held.
type Listener interface{ Wake() }
