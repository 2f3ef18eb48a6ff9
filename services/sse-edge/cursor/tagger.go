package cursor

import "rejoin/shared/event"

// maxTags bounds the tags that a connection holds, which receives the events of any number of streams: some 10 KB.
const maxTags = 128

// Tagger makes the tags of a session's event IDs. It remembers the last ones.
type Tagger struct {
	parts event.TagParts
	known map[string]string
}

// NewTagger returns a tagger for the streams of a session.
func NewTagger(place event.TagParts) Tagger { return Tagger{parts: place, known: map[string]string{}} }

// Tag returns the tag of a stream's IDs, or of the flow's when stream is empty.
func (t Tagger) Tag(stream string) string {
	tag, ok := t.known[stream]
	if !ok {
		place := t.parts
		place.Stream = stream
		tag = place.Tag()
		if len(t.known) == maxTags {
			clear(t.known)
		}
		t.known[stream] = tag
	}
	return tag
}
