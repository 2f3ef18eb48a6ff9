package janitor

import (
	"cmp"
	"container/heap"
	"slices"
)

// run is what is left of a stream's events, oldest first.
type run struct {
	stream string
	events []entry
}

// runs is a heap of streams, the one with the oldest event on top.
type runs []run

func (r runs) Len() int           { return len(r) }
func (r runs) Less(i, j int) bool { return r[i].events[0].seq < r[j].events[0].seq }
func (r runs) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *runs) Push(x any)        { *r = append(*r, x.(run)) } //nolint:errcheck,forcetypeassert // heap's contract
func (r *runs) Pop() any {
	old := *r
	last := old[len(old)-1]
	*r = old[:len(old)-1]
	return last
}

// trimOldest returns what of a session's streams has to go for the session to be
// within its limits: the oldest events of all streams, and not one too many. An
// event counts as one too many for the number of events first.
func trimOldest(session string, live []run, lim limits) []Removal {
	var events, bytes int64
	h := make(runs, 0, len(live))
	for _, r := range live {
		for _, e := range r.events {
			bytes += int64(e.size)
		}
		events += int64(len(r.events))
		if len(r.events) > 0 {
			h = append(h, r)
		}
	}
	tooMany := func() bool { return lim.maxEvents >= 0 && events > lim.maxEvents }
	tooLarge := func() bool { return lim.maxBytes >= 0 && bytes > lim.maxBytes }
	if !tooMany() && !tooLarge() {
		return nil
	}
	heap.Init(&h)
	type key struct {
		stream string
		reason Reason
	}
	gone := map[key][]uint64{}
	for tooMany() || tooLarge() {
		reason := SessionBytes
		if tooMany() {
			reason = SessionEvents
		}
		oldest := h[0].events[0]
		k := key{h[0].stream, reason}
		gone[k] = append(gone[k], oldest.seq)
		events, bytes = events-1, bytes-int64(oldest.size)
		if h[0].events = h[0].events[1:]; len(h[0].events) == 0 {
			heap.Pop(&h)
		} else {
			heap.Fix(&h, 0)
		}
	}
	out := make([]Removal, 0, len(gone))
	for k, sequences := range gone {
		out = append(out, Removal{k.reason, session, k.stream, sequences})
	}
	slices.SortFunc(out, func(a, b Removal) int { return cmp.Compare(a.Sequences[0], b.Sequences[0]) })
	return out
}
