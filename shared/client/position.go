package client

import "rejoin/shared/event"

// position is a cursor in the subscribed stream or session. Its text is sufficient for the
// server; by its sequence the subscriber recognizes an event that was already yielded.
type position struct {
	text     string
	sequence uint64
	readable bool // the text is an ID of the subscribed stream or session
}

// positionOf reads an event ID of a stream, or of a session's flow when stream is
// empty. Any other ID is kept as text, which the server interprets. An ID that could not
// be sent back in a header gives an empty position.
func positionOf(text, stream string) position {
	if !event.PrintableASCII(text) {
		return position{}
	}
	id, err := event.ParseID(text)
	return position{text: text, sequence: id.Sequence, readable: err == nil && id.Stream == stream}
}

// covers reports whether an event at the other position was delivered already.
// Sequences are compared without the tags: these differ after a restart of the
// server, and when sequences are given again a gap reports that first.
func (p position) covers(other position) bool {
	return p.readable && other.readable && other.sequence <= p.sequence
}

// after returns the later of two positions, and the other one when they are the same
// or cannot be compared: the newer text has the newer tag.
func (p position) after(other position) position {
	if other.text == "" || p.readable && other.readable && other.sequence < p.sequence {
		return p
	}
	return other
}
