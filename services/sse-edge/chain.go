package edge

import (
	"maps"

	"rejoin/shared/event"
)

// place is a stream of a life of a session, or the flow of all its streams when stream is
// empty. A life that nobody has opened is empty.
type place struct{ session, life, stream string }

// lives is what the window knows of a session's name: which of its lives is the newest.
type lives struct {
	session string
	// life is the newest one, if known; opened is the sequence of its opening, 0 when the
	// window did not see that.
	life   string
	known  bool
	opened uint64
	// flows are the flows that the window has, by life.
	flows map[string]*chain
}

// chain is what the window knows of one stream, or of the flow of one session: a
// list, through the window's entries, of its events. The window's lock guards it.
type chain struct {
	place place
	// number is a stream's place in the window's table of chains; flow is the chain
	// of its life's flow. A flow has neither, but the session's name.
	number uint32
	flow   *chain
	name   *lives
	// streams are the chains that have this one as their flow.
	streams map[string]*chain
	// first and last are the numbers of the oldest and newest entry of the list;
	// length counts them, and with 0 the two mean nothing.
	first, last uint64
	length      int
	// entries counts a stream's entries in the ring, the cleared ones too.
	entries int
	// prefix is the text of the stream's event IDs up to the sequence, made for
	// generation. Flows have none: their frames are made on reading.
	prefix     []byte
	generation string
	// lost is what the window lacks of a stream that was there: what a =clear marker took
	// away, and what the tail missed because it was deleted. losses has it, on a flow, for
	// each stream, and under "" when it is about all of them.
	lost   loss
	losses map[string]loss
	// unsure is, on a flow, what the tail missed of the life's entries, of which it is not
	// known whose they were.
	unsure loss
	// clearedAt is the sequence of the newest =clear marker of the chain's place, trimmedAt
	// that of the newest trim; newestTrim is that of the newest one of a flow and all its streams.
	clearedAt, trimmedAt, newestTrim uint64
	// closed is the sequence of the end, the final event, or the opening of another life;
	// 0 while open. An event that follows cancels it.
	closed uint64
	// readers counts the subscribers that hold the chain.
	readers int
	// version counts what subscribers are woken for; changed is closed at the next
	// one, and nil while nobody waits. subs are the workers that are told of it.
	version uint64
	changed chan struct{}
	subs    []*subscription
}

// silent reports whether the window has no event of the chain's place.
func (c *chain) silent() bool {
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

// lose notes what the window lacks of a chain's place, on the flow too. What lies below
// the floor is asked of the log anyway.
func (c *chain) lose(l loss, floor uint64) {
	flow := c
	if c.flow != nil {
		flow = c.flow
		if l.upTo > c.lost.upTo {
			c.lost = l
		}
	} else if !l.certain && l.upTo > c.unsure.upTo {
		c.unsure = l
	}
	if flow.losses == nil {
		flow.losses = map[string]loss{}
	}
	if l.upTo > flow.losses[l.stream].upTo {
		flow.losses[l.stream] = l
	}
	maps.DeleteFunc(flow.losses, func(of string, lost loss) bool {
		all := flow.losses[""]
		return lost.upTo < floor || of != "" && all.certain && lost.upTo <= all.upTo
	})
}

// lossesBehind returns what the window lacks of the chain's place and the reader has not
// heard of. Below the floor the log itself is asked for what is not certain here.
func (c *chain) lossesBehind(r *reader, floor uint64) (all []loss) {
	inside := r.cursor+1 >= floor
	if c.flow == nil {
		for _, l := range c.losses {
			if l.upTo > r.droppedTo(l.stream) && (l.certain || inside) {
				all = append(all, l)
			}
		}
		return all
	}
	if c.lost.upTo > r.cursor {
		all = append(all, c.lost)
	}
	if u := c.flow.unsure; inside && u.upTo > max(r.cursor, c.lost.upTo) {
		u.stream = c.place.stream
		all = append(all, u)
	}
	return all
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
	return c.length == 0 && c.entries == 0 && c.readers == 0 && len(c.streams) == 0 && c.closed < floor && c.clearedAt < floor && c.trimmedAt < floor
}

// retag makes the prefix of the chain's event IDs, unless it is the right one.
func (c *chain) retag(birth, generation string) {
	if c.prefix != nil && c.generation == generation {
		return
	}
	p := event.Place{Birth: birth, Generation: generation, Session: c.place.session, Life: c.place.life, Stream: c.place.stream}
	c.generation = generation
	c.prefix = event.AppendIDPrefix(nil, c.place.stream, p.Tag())
}
