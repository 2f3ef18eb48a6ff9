package edge

import "rejoin/shared/event"

// tagger makes the tags of a session's event IDs, each once.
type tagger struct {
	place event.Place
	known map[string]string
}

func newTagger(place event.Place) tagger { return tagger{place: place, known: map[string]string{}} }

// tag returns the tag of a stream's IDs, or of the flow's when stream is empty.
func (t tagger) tag(stream string) string {
	tag, ok := t.known[stream]
	if !ok {
		place := t.place
		place.Stream = stream
		tag = place.Tag()
		t.known[stream] = tag
	}
	return tag
}
