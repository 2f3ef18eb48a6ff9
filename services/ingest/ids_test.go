package ingest

import (
	"strconv"
	"testing"

	"rejoin/shared/event"
)

// What is remembered of a place is not another one's, nor is there more and more of it.
func TestPublish_EventIDs(t *testing.T) {
	known := newIDs()
	for n := range 2*maxPlaces + 10 {
		place := event.Place{
			Origin: "b", Generation: strconv.Itoa(n % 2), Session: strconv.Itoa(n % 3), Life: strconv.Itoa(n % 5), Stream: strconv.Itoa(n / 4),
		}
		for sequence := range uint64(3) {
			want := event.ID{Stream: place.Stream, Tag: place.Tag(), Sequence: sequence}.String()
			if got := known.of(place, sequence); got != want {
				t.Fatalf("%+v at %d: %s, want %s", place, sequence, got, want)
			}
		}
	}
	if len(known.prefixes) > maxPlaces {
		t.Errorf("%d places are remembered", len(known.prefixes))
	}
}
