package ledger

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawView returns a life with up to five streams and a control entry here and there.
func drawView(t *rapid.T) LifeView {
	v := LifeView{LifeState: LifeState{session: "s"}}
	streams := make([]streamView, rapid.IntRange(1, 5).Draw(t, "streams"))
	for i := range streams {
		streams[i].name = fmt.Sprint(i)
		streams[i].final = rapid.Bool().Draw(t, "final")
	}
	age := func(seq uint64) time.Time { return noon.Add(time.Duration(seq) * time.Minute).Add(-time.Hour) }
	for seq := range rapid.Uint64Range(0, 40).Draw(t, "entries") {
		seq++
		s := &streams[rapid.IntRange(0, len(streams)-1).Draw(t, "stream")]
		kind := rapid.IntRange(0, 30).Draw(t, "kind")
		if kind > 1 {
			s.events = append(s.events, entry{seq: seq, size: rapid.Uint32Range(0, 9).Draw(t, "size"), unix: uint32(age(seq).Unix())}) //nolint:gosec // 2026
			continue
		}
		m := marker{seq, seq, age(seq)}
		switch whole := kind == 1 && rapid.IntRange(0, 3).Draw(t, "of the life") == 0; {
		case kind == 0:
			s.end = m
		case whole:
			v.markers = &markers{clear: m}
		default:
			s.cleared = seq
		}
	}
	for _, s := range streams {
		if n := len(s.events); n > 0 {
			if s.end.seq < s.events[n-1].seq {
				s.end = marker{}
			}
			v.streams = append(v.streams, s)
		}
	}
	return v
}

// plain computes the removals of the policy for a view in a plainer way.
type plain struct {
	view  LifeView
	lim   Limits
	gone  map[uint64]Cause
	ends  map[string]uint64 // sequence of the end of each finished stream
	ended map[string]time.Time
}

func (p *plain) stays(s streamView) (left []entry) {
	for _, e := range s.events {
		if p.gone[e.seq] == "" {
			left = append(left, e)
		}
	}
	return left
}

func (p *plain) all() (left []entry) {
	for _, s := range p.view.streams {
		left = append(left, p.stays(s)...)
	}
	slices.SortFunc(left, func(a, b entry) int { return cmp.Compare(a.seq, b.seq) })
	return left
}

// within reports whether the remaining events are within the limits of events and bytes.
func (p *plain) within() bool {
	bytes := int64(0)
	for _, e := range p.all() {
		bytes += int64(e.size)
	}
	return (p.lim.MaxEvents < 0 || int64(len(p.all())) <= p.lim.MaxEvents) && (p.lim.MaxBytes < 0 || bytes <= p.lim.MaxBytes)
}

func (p *plain) markers() {
	p.gone, p.ends, p.ended = map[uint64]Cause{}, map[string]uint64{}, map[string]time.Time{}
	for _, s := range p.view.streams {
		cleared := max(p.view.markers.clearedAt(), s.cleared)
		for _, e := range s.events {
			if e.seq <= cleared {
				p.gone[e.seq] = Cleared
			}
		}
		if s.end.seq > 0 {
			p.ends[s.name], p.ended[s.name] = s.end.seq, s.end.at
		}
		if n := len(s.events); n > 0 && s.final {
			p.ends[s.name], p.ended[s.name] = s.events[n-1].seq, s.events[n-1].time()
		}
	}
}

// next returns the event to remove next: of the stream that was finished first, long
// enough ago, or else the oldest.
func (p *plain) next() uint64 {
	best, found := streamView{}, false
	for _, s := range p.view.streams {
		end, finished := p.ends[s.name]
		if left := p.stays(s); !finished || len(left) == 0 || noon.Sub(p.ended[s.name]) < p.lim.ClosedGrace {
			continue
		}
		if !found || end < p.ends[best.name] || end == p.ends[best.name] && p.firstLive(s) < p.firstLive(best) {
			best, found = s, true
		}
	}
	if found {
		return p.stays(best)[0].seq
	}
	return p.all()[0].seq
}

// firstLive returns the first event of a stream that the markers leave.
func (p *plain) firstLive(s streamView) uint64 {
	for _, e := range s.events {
		if r := p.gone[e.seq]; r != Cleared && r != StreamEvents {
			return e.seq
		}
	}
	return 0
}

func (p *plain) tooManyOpen() (oldest streamView, yes bool) {
	n := int64(0)
	last := func(s streamView) uint64 { left := p.stays(s); return left[len(left)-1].seq }
	for _, s := range p.view.streams {
		if _, finished := p.ends[s.name]; finished || len(p.stays(s)) == 0 {
			continue
		}
		if n++; n == 1 || last(s) < last(oldest) {
			oldest = s
		}
	}
	return oldest, p.lim.MaxStreams >= 0 && n > p.lim.MaxStreams
}

func (p *plain) run() {
	p.markers()
	for _, s := range p.view.streams {
		left := p.stays(s)
		for tooMany := int64(len(left)) - p.lim.MaxPerStream; p.lim.MaxPerStream >= 0 && tooMany > 0; tooMany-- {
			p.gone[left[0].seq] = StreamEvents
			left = left[1:]
		}
	}
	for s, yes := p.tooManyOpen(); yes; s, yes = p.tooManyOpen() {
		for _, e := range p.stays(s) {
			p.gone[e.seq] = SessionStreams
		}
	}
	for !p.within() {
		cause := SessionBytes
		if p.lim.MaxEvents >= 0 && int64(len(p.all())) > p.lim.MaxEvents {
			cause = SessionEvents
		}
		p.gone[p.next()] = cause
	}
}

// The policy removes the same events as a plainer one: so a session within its limits is left
// alone, one that is not gets to within them and not one event further, each stream
// loses its oldest events, and the order of the streams makes no difference.
func TestPolicy_Exact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		lim := Limits{
			MaxPerStream: rapid.Int64Range(-1, 20).Draw(t, "max per stream"),
			MaxEvents:    rapid.Int64Range(-1, 45).Draw(t, "max events"), MaxBytes: rapid.Int64Range(-1, 200).Draw(t, "max bytes"),
			MaxStreams: rapid.Int64Range(-1, 5).Draw(t, "max streams"), ClosedGrace: time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Minute,
		}
		want := plain{view: v, lim: lim}
		want.run()
		got := Policy(v, lim, noon)
		if found := applied(t, v, got); !reflect.DeepEqual(found, want.gone) {
			t.Fatalf("got  %v\nwant %v", found, want.gone)
		}
		shuffled := v
		shuffled.streams = slices.Clone(v.streams)
		rand.Shuffle(len(v.streams), func(i, j int) {
			shuffled.streams[i], shuffled.streams[j] = shuffled.streams[j], shuffled.streams[i]
		})
		if again := applied(t, shuffled, Policy(shuffled, lim, noon)); !reflect.DeepEqual(again, want.gone) {
			t.Fatalf("in another order %v\nwant %v", again, want.gone)
		}
	})
}

// applied returns the removed events, each with the cause, and checks that at every
// step it is the oldest of its stream.
func applied(t *rapid.T, v LifeView, removals []Removal) map[uint64]Cause {
	left := map[string][]entry{}
	for _, s := range v.streams {
		left[s.name] = slices.Clone(s.events)
	}
	found := map[uint64]Cause{}
	for _, r := range removals {
		n := len(r.Sequences)
		events := left[r.Stream]
		part := events[:min(n, len(events))]
		left[r.Stream] = events[len(part):]
		if !slices.Equal(sequencesOfEvents(part), r.Sequences) {
			t.Fatalf("%+v is not the end of %v", r, events)
		}
		for _, seq := range r.Sequences {
			found[seq] = r.Cause
		}
	}
	return found
}
