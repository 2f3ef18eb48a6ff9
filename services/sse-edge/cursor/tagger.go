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
func NewTagger(parts event.TagParts) Tagger { return Tagger{parts: parts, known: map[string]string{}} }

// Tag returns the tag of a stream's IDs, or of the flow's when stream is empty.
func (t Tagger) Tag(stream string) string {
	tag, ok := t.known[stream]
	if !ok {
		parts := t.parts
		parts.Stream = stream
		tag = parts.Tag()
		if len(t.known) == maxTags {
			clear(t.known)
		}
		t.known[stream] = tag
	}
	return tag
}
