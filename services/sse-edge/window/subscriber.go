package window

// Subscriber is a position on a chain: the cursor, and the state of the window that it has seen.
// It is not safe for concurrent use.
type Subscriber struct {
	Chain  *Chain
	Cursor uint64
	// Rollbacks is how many of the window's roll-backs the subscriber has seen.
	Rollbacks int
	// Last is the number of the window's entry that was returned last.
	Last uint64
	// Dropped holds, on a flow, up to which sequence a stream's events are gone, so that
	// older ones that are still in the window are not sent.
	Dropped map[string]uint64
}

// DroppedTo returns up to which sequence a stream's events are not sent any more.
func (s *Subscriber) DroppedTo(stream string) uint64 { return max(s.Cursor, s.Dropped[stream]) }

// Watcher is told of the openings that a window takes in. Opened must not block: the window's lock is
// held.
type Watcher interface{ Opened(session string) }

// Listener is woken when a chain has changed. Wake must not block: the window's lock is held.
type Listener interface{ Wake() }
