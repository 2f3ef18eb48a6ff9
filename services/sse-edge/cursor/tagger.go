package cursor

import "rejoin/shared/event"

// Tagger makes the tags of a session's event IDs, each once.
type Tagger struct {
	place event.Place
	known map[string]string
}

// NewTagger returns a tagger for the streams of a session.
func NewTagger(place event.Place) Tagger { return Tagger{place: place, known: map[string]string{}} }

// Tag returns the tag of a stream's IDs, or of the flow's when stream is empty.
func (t Tagger) Tag(stream string) string {
	tag, ok := t.known[stream]
	if !ok {
		place := t.place
		place.Stream = stream
		tag = place.Tag()
		t.known[stream] = tag
	}
	return tag
}
