package window

// ChainCursor is a reader's cursor on a chain, with the state of the window that the reader has seen.
// It is not safe for concurrent use.
type ChainCursor struct {
	Chain  *Chain
	Cursor uint64
	// Forks is how many of the window's forks the reader has seen.
	Forks int
	// LastNumber is the number of the last returned entry of the window.
	LastNumber uint64
	// Dropped holds, on a flow, the sequence up to which a stream's events are removed, so that
	// older ones that are still in the window are not sent.
	Dropped map[string]uint64
}

// DroppedTo returns the sequence up to which a stream's events are not sent any more.
func (c *ChainCursor) DroppedTo(stream string) uint64 { return max(c.Cursor, c.Dropped[stream]) }

// Watcher is called for each opening that a window receives. Opened must not block: the window's lock is
// held.
type Watcher interface{ Opened(session string) }

// Listener is woken when a chain has changed. Wake must not block: the window's lock is held.
type Listener interface{ Wake() }
