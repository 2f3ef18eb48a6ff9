package edge

import (
	"maps"

	"rejoin/shared/event"
)

// place is a stream, or the flow of a session when stream is empty.
type place struct{ session, stream string }

// chain is what the window knows of one stream, or of the flow of one session: a
// list, through the window's entries, of its events. The window's lock guards it.
type chain struct {
	place place
	// number is a stream's place in the window's table of chains; flow is the chain
	// of its session's flow. A flow has neither.
	number uint32
	flow   *chain
	// streams counts the chains that have this one as their flow.
	streams int
	// first and last are the numbers of the oldest and newest entry of the list;
	// length counts them, and with 0 the two mean nothing.
	first, last uint64
	length      int
	// entries counts a stream's entries in the ring, the cleared ones too.
	entries int
	// prefix is the text of the stream's event IDs up to the sequence, made for
	// generation and incarnation. Flows have none: their frames are made on reading.
	prefix                  []byte
	generation, incarnation string
	// lost is the sequence of the newest event that a =clear marker took away; losses
	// has it, on a flow, for each stream, and under "" when all of them were cleared.
	lost   uint64
	losses map[string]uint64
	// clearedAt is the sequence of the newest =clear marker of the chain's place.
	clearedAt uint64
	// closed is the sequence of the =close marker or final event; 0 while open.
	closed uint64
	// closedOf is the session's incarnation when it was closed.
	closedOf string
	// readers counts the subscribers that hold the chain.
	readers int
	// version counts what subscribers are woken for; changed is closed at the next
	// one, and nil while nobody waits. subs are the workers that are told of it.
	version uint64
	changed chan struct{}
	subs    []*subscription
}

// lose notes on a flow that a =clear marker took a stream's events up to a sequence
// away, or those of all streams when stream is empty. What lies below the floor is
// asked of the log anyway.
func (c *chain) lose(stream string, upTo, floor uint64) {
	if c.losses == nil {
		c.losses = map[string]uint64{}
	}
	c.lost = max(c.lost, upTo)
	c.losses[stream] = max(c.losses[stream], upTo)
	maps.DeleteFunc(c.losses, func(of string, lost uint64) bool {
		return lost < floor || of != "" && lost <= c.losses[""]
	})
}

func (c *chain) wake() {
	c.version++
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	for _, s := range c.subs {
		s.wake()
	}
}

// idle reports whether the window may forget the chain: everything that it says
// lies before floor, where the log is asked anyway.
func (c *chain) idle(floor uint64) bool {
	return c.length == 0 && c.entries == 0 && c.readers == 0 && c.streams == 0 && c.closed < floor && c.clearedAt < floor
}

// retag makes the prefix of the chain's event IDs, unless it is the right one.
func (c *chain) retag(birth string, generation, incarnation string) {
	if c.prefix != nil && c.generation == generation && c.incarnation == incarnation {
		return
	}
	p := event.Place{Birth: birth, Generation: generation, Session: c.place.session, Incarnation: incarnation, Stream: c.place.stream}
	c.generation, c.incarnation = generation, incarnation
	c.prefix = event.AppendIDPrefix(nil, c.place.stream, p.Tag())
}
