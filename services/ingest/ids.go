package ingest

import (
	"strconv"
	"sync"

	"rejoin/shared/event"
)

// maxPlaces bounds the places that ids remembers: some 2 MB, 6 with the longest names.
const maxPlaces = 1 << 13

// ids makes the IDs of stored events. A place's tag is two hashes, so it remembers what the
// IDs of a place begin with. It is safe for concurrent use.
type ids struct {
	mu       sync.Mutex
	prefixes map[event.Place]string
}

func newIDs() *ids { return &ids{prefixes: map[event.Place]string{}} }

func (i *ids) of(place event.Place, sequence uint64) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	prefix, ok := i.prefixes[place]
	if !ok {
		prefix = string(event.AppendIDPrefix(nil, place.Stream, place.Tag()))
		if len(i.prefixes) >= maxPlaces {
			clear(i.prefixes)
		}
		i.prefixes[place] = prefix
	}
	return prefix + strconv.FormatUint(sequence, 10)
}
