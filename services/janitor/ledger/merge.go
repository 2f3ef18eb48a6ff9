package ledger

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// run has the remaining events of a stream, oldest first.
type run struct {
	stream string
	events []entry
	end    marker // see [streamView.ending]
}

func (r run) open() bool { return r.end.first == 0 }

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

// trimming collects the events that have to be removed for a session to be within its limits.
type trimming struct {
	life          string // its key
	limits        Limits
	left          runs
	events, bytes int64 // of left
	gone          map[removalKey][]uint64
}

// removalKey tells the removals of a life apart.
type removalKey struct {
	stream string
	cause  Cause
}

// trimLive returns the removals that bring a session within its limits, and not one event
// too many:
//
//   - of the open streams with events, those that were written to least recently;
//   - then events of the streams that were finished longer than the grace ago, those
//     that were finished first, first;
//   - then the oldest events of all streams.
//
// An event over both limits counts for the number of events.
func trimLive(life string, live []run, lim Limits, now time.Time) []Removal {
	t := trimming{life: life, limits: lim, gone: map[removalKey][]uint64{}}
	for _, r := range live {
		if len(r.events) > 0 {
			t.left = append(t.left, r)
		}
	}
	t.trimStreams()
	for _, r := range t.left {
		t.events += int64(len(r.events))
		for _, e := range r.events {
			t.bytes += int64(e.size)
		}
	}
	t.trimFinished(now)
	t.trimOldest()
	return t.removals()
}

// trimStreams takes the events of the open streams above the limit.
func (t *trimming) trimStreams() {
	if t.limits.MaxStreams < 0 {
		return
	}
	last := func(r run) uint64 { return r.events[len(r.events)-1].seq }
	var open, finished runs
	for _, r := range t.left {
		if r.open() {
			open = append(open, r)
		} else {
			finished = append(finished, r)
		}
	}
	tooMany := int64(len(open)) - t.limits.MaxStreams
	if tooMany <= 0 {
		return
	}
	slices.SortFunc(open, func(a, b run) int { return cmp.Compare(last(a), last(b)) })
	for _, r := range open[:tooMany] {
		t.gone[removalKey{r.stream, SessionStreams}] = sequencesOfEvents(r.events)
	}
	t.left = slices.Concat(finished, open[tooMany:])
}

// over returns the cause for which an event has to be removed, or nothing.
func (t *trimming) over() Cause {
	switch {
	case t.limits.MaxEvents >= 0 && t.events > t.limits.MaxEvents:
		return SessionEvents
	case t.limits.MaxBytes >= 0 && t.bytes > t.limits.MaxBytes:
		return SessionBytes
	default:
		return ""
	}
}

// takeOldest takes a stream's oldest event.
func (t *trimming) takeOldest(r *run, cause Cause) {
	e := r.events[0]
	k := removalKey{r.stream, cause}
	t.gone[k] = append(t.gone[k], e.seq)
	t.events, t.bytes, r.events = t.events-1, t.bytes-int64(e.size), r.events[1:]
}

func (t *trimming) trimFinished(now time.Time) {
	if t.over() == "" {
		return
	}
	// The end of the life ends many streams at once.
	slices.SortFunc(t.left, func(a, b run) int {
		return cmp.Or(cmp.Compare(a.end.first, b.end.first), cmp.Compare(a.events[0].seq, b.events[0].seq))
	})
	for i := range t.left {
		r := &t.left[i]
		if r.open() || now.Sub(r.end.at) < t.limits.ClosedGrace {
			continue
		}
		for cause := t.over(); cause != "" && len(r.events) > 0; cause = t.over() {
			t.takeOldest(r, cause)
		}
	}
	t.left = slices.DeleteFunc(t.left, func(r run) bool { return len(r.events) == 0 })
}

func (t *trimming) trimOldest() {
	if t.over() == "" {
		return
	}
	heap.Init(&t.left)
	for cause := t.over(); cause != ""; cause = t.over() {
		if t.takeOldest(&t.left[0], cause); len(t.left[0].events) == 0 {
			heap.Pop(&t.left)
		} else {
			heap.Fix(&t.left, 0)
		}
	}
}

func (t *trimming) removals() []Removal {
	if len(t.gone) == 0 {
		return nil
	}
	out := make([]Removal, 0, len(t.gone))
	for k, sequences := range t.gone {
		out = append(out, Removal{k.cause, t.life, k.stream, sequences})
	}
	slices.SortFunc(out, func(a, b Removal) int { return cmp.Compare(a.Sequences[0], b.Sequences[0]) })
	return out
}
