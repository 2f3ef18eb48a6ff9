package client

import "rejoin/shared/event"

// position is a place in what is subscribed to. Its text is all that the server
// needs; the sequence in it tells an event that was already yielded.
type position struct {
	text     string
	sequence uint64
	readable bool // the text is an ID of what is subscribed to
}

// positionOf reads an event ID of a stream, or of a session's flow when stream is
// empty. An ID of something else is kept as text: what it means is for the server
// to say. What could not be sent back in a header is no place at all.
func positionOf(text, stream string) position {
	if !event.PrintableASCII(text) {
		return position{}
	}
	id, err := event.ParseID(text)
	return position{text: text, sequence: id.Sequence, readable: err == nil && id.Stream == stream}
}

// covers reports whether an event at the other place was delivered already.
// Sequences are compared whatever the tags: they differ after a restart of the
// server, and when sequences are given again a gap says so first.
func (p position) covers(other position) bool {
	return p.readable && other.readable && other.sequence <= p.sequence
}

// after returns the later of two places, and the other one when they are the same
// or cannot be compared: the newer text has the newer tag.
func (p position) after(other position) position {
	if other.text == "" || p.readable && other.readable && other.sequence < p.sequence {
		return p
	}
	return other
}
