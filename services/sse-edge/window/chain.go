package window

import (
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Place is a stream of a life of a session, or the flow of all its streams when stream is
// empty. A life without an opening is empty.
type Place struct{ Session, Life, Stream string }

// lives is the window's knowledge of a session's name: which of its lives is the newest.
type lives struct {
	SessionView // without End and Others. Life keeps its value when a roll-back, or the log, has left known false
	known       bool
	opening     uint64 // the sequence of its newest opening, 0 when the window did not see that
	// flows are the flows that the window has, by life.
	flows map[string]*Chain
}

// isFollowed reports whether the window has a flow of the newest life, which has not ended as far as it
// knows. After a roll-back that took the opening this is the life that connected readers are in.
func (n *lives) isFollowed() bool {
	flow := n.flows[n.Life]
	return flow != nil && flow.EndedAt == 0
}

// Chain is the state of one stream, or of the flow of one life, in the window: a
// list, through the window's entries, of its events. The window's lock guards it.
type Chain struct {
	Place Place
	// number is a stream's index in the window's table of chains; flow is the chain
	// of its life's flow. The chain of a flow has neither, but the session's name.
	number uint32
	flow   *Chain
	name   *lives
	// streams are the chains that have this one as their flow.
	streams map[string]*Chain
	// first and last are the numbers of the oldest and newest entry of the list;
	// length counts them, and with 0 the two mean nothing.
	first, last uint64
	length      int
	// held counts the window's entries of the chain's place: those in the ring, the cleared ones
	// too, and control entries.
	held int
	// prefix is the text of the stream's event IDs up to the sequence, made for
	// generation. Flows have none: their frames are made on reading.
	prefix     []byte
	generation string
	// lost is the newest loss of a stream: events that a clear removed, or that the tail
	// missed because they were deleted. losses has it, on a flow, for each stream, and
	// under "" when it is about all of them.
	lost   eventlog.Loss
	losses map[string]eventlog.Loss
	// lossesLeft is how many losses there were after they were last pruned.
	lossesLeft int
	// unsure is, on a flow, the loss of the life's entries that the tail missed, of which the
	// streams are not known.
	unsure eventlog.Loss
	// clearedAt is the sequence of the newest clear of the chain's place, trimmedAt
	// that of the newest trim; newestTrim is that of the newest one of a flow and all its streams.
	clearedAt, trimmedAt, newestTrim uint64
	// EndedAt is the sequence of the end, the final event, or the opening of another life;
	// 0 while open. An event that follows cancels it.
	EndedAt uint64
	// newestEndAt is the sequence of the newest end, which may be a copy.
	newestEndAt uint64
	// readers counts the readers that hold the chain.
	readers int
	// changed is closed at the next change that readers are woken for, and nil without a
	// waiter. listeners are the workers that the change wakes.
	changed   chan struct{}
	listeners []Listener
}

// silent reports whether the window has no event of the chain's place.
func (c *Chain) silent() bool {
	if c.flow != nil {
		return c.length == 0
	}
	for _, stream := range c.streams {
		if stream.length > 0 {
			return false
		}
	}
	return true
}

// lose notes a loss of a chain's place, on the flow too. Readers ask the log anyway for
// losses before the window's start.
func (c *Chain) lose(l eventlog.Loss, start uint64) {
	flow := c
	if c.flow != nil {
		flow = c.flow
		if l.UpTo > c.lost.UpTo {
			c.lost = l
		}
	} else if !l.Certain && l.UpTo > c.unsure.UpTo {
		c.unsure = l
	}
	if l.Stream != "" && flow.hasLost(l.UpTo) {
		return
	}
	if flow.losses == nil {
		flow.losses = map[string]eventlog.Loss{}
	}
	if l.UpTo > flow.losses[l.Stream].UpTo {
		flow.losses[l.Stream] = l
	}
	// Not at each loss: a clear may be about thousands of streams, and the window's lock is held.
	if l.Stream == "" || len(flow.losses) > 2*flow.lossesLeft {
		flow.pruneLosses(start)
	}
}

// hasLost reports whether all of a flow's streams have lost their events up to a sequence.
func (c *Chain) hasLost(upTo uint64) bool {
	all := c.losses[""]
	return all.Certain && upTo <= all.UpTo
}

// pruneLosses drops the losses of a flow that lie before the window's start, or in one of all streams. It makes
// a new map: one that entries were deleted from takes as long to walk through as it did before.
func (c *Chain) pruneLosses(start uint64) {
	left := map[string]eventlog.Loss{}
	for of, l := range c.losses {
		if l.UpTo >= start && (of == "" || !c.hasLost(l.UpTo)) {
			left[of] = l
		}
	}
	c.losses, c.lossesLeft = left, len(left)
}

// lossesAfter returns the losses of the chain's place that the reader has not seen yet.
// Before the window's start the reader asks the log itself instead of the uncertain ones.
func (c *Chain) lossesAfter(r *ChainCursor, start uint64) (all []eventlog.Loss) {
	inside := r.Cursor+1 >= start
	if c.flow == nil {
		for _, l := range c.losses {
			if l.UpTo > r.DroppedTo(l.Stream) && (l.Certain || inside) {
				all = append(all, l)
			}
		}
		return all
	}
	if c.lost.UpTo > r.Cursor {
		all = append(all, c.lost)
	}
	if u := c.flow.unsure; inside && u.UpTo > max(r.Cursor, c.lost.UpTo) {
		u.Stream = c.Place.Stream
		all = append(all, u)
	}
	return all
}

// end returns the sequence at which the place ends; 0 while it is open.
func (c *Chain) end() uint64 {
	if c.flow != nil && c.flow.EndedAt != 0 && (c.EndedAt == 0 || c.flow.EndedAt < c.EndedAt) {
		return c.flow.EndedAt
	}
	return c.EndedAt
}

func (c *Chain) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	for _, l := range c.listeners {
		l.Wake()
	}
}

// idle reports whether the window may drop the chain: all that it records lies
// before start, where readers ask the log anyway.
func (c *Chain) idle(start uint64) bool {
	if c.flow == nil && c.Place.Life == c.name.Life && c.name.opening >= start {
		return false // its name has the opening
	}
	return c.length == 0 && c.held == 0 && c.readers == 0 && len(c.streams) == 0 && max(c.EndedAt, c.newestEndAt) < start && c.clearedAt < start && c.trimmedAt < start
}

// A chain, with its entries in maps, takes about so many bytes, and its names; a flow's is the first
// chain of its session's name. Measured with TestWindow_MemoryOfManyChains.
const (
	streamBytes = 736
	flowBytes   = 1408
)

// bytes is about the memory of the chain.
func (c *Chain) bytes() int {
	if c.flow == nil {
		return flowBytes + len(c.Place.Session) + len(c.Place.Life)
	}
	return streamBytes + 2*len(c.Place.Stream) // in its prefix as well
}

// retag makes the prefix of the chain's event IDs, unless it is the right one.
func (c *Chain) retag(origin, generation string) {
	if c.prefix != nil && c.generation == generation {
		return
	}
	p := event.TagParts{Origin: origin, Generation: generation, Session: c.Place.Session, Life: c.Place.Life, Stream: c.Place.Stream}
	c.generation = generation
	c.prefix = event.AppendIDPrefix(nil, c.Place.Stream, p.Tag())
}
