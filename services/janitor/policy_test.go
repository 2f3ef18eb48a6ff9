package janitor

import (
	"reflect"
	"testing"
	"time"

	"rejoin/shared/session"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// sized returns events of 10 bytes with the given sequences.
func sized(sequences ...uint64) []entry {
	var all []entry
	for _, seq := range sequences {
		all = append(all, entry{seq: seq, size: 10})
	}
	return all
}

// old returns events that were stored a while before noon.
func old(age time.Duration, sequences ...uint64) []entry {
	all := sized(sequences...)
	for i := range all {
		all[i].unix = uint32(noon.Add(-age).Unix()) //nolint:gosec // 2026
	}
	return all
}

// at returns markers that were stored a while before noon.
func at(age time.Duration, sequences ...uint64) []marker {
	var all []marker
	for _, seq := range sequences {
		all = append(all, marker{seq, noon.Add(-age)})
	}
	return all
}

func TestPolicy(t *testing.T) {
	off := limits{maxEvents: -1, maxBytes: -1, maxStreams: -1, closedGrace: 5 * time.Minute}
	with := func(events, bytes int64) limits {
		return limits{maxEvents: events, maxBytes: bytes, maxStreams: -1, closedGrace: off.closedGrace}
	}
	withStreams := func(streams, events int64) limits {
		return limits{maxEvents: events, maxBytes: -1, maxStreams: streams, closedGrace: off.closedGrace}
	}
	two := []streamView{{name: "a", events: sized(1, 4, 5)}, {name: "b", events: sized(2, 3, 6)}}
	for _, test := range []struct {
		name string
		view sessionView
		lim  limits
		want []Removal
	}{
		{"within all limits", sessionView{streams: two}, with(6, 60), nil},
		{"no limits", sessionView{streams: two}, off, nil},
		{"the oldest of all streams go first", sessionView{streams: two}, with(3, -1), []Removal{
			{SessionEvents, "s", "a", []uint64{1}},
			{SessionEvents, "s", "b", []uint64{2, 3}},
		}},
		{"not one byte too few", sessionView{streams: two}, with(-1, 49), []Removal{
			{SessionBytes, "s", "a", []uint64{1}},
			{SessionBytes, "s", "b", []uint64{2}},
		}},
		{"events before bytes", sessionView{streams: two}, with(4, 30), []Removal{
			{SessionEvents, "s", "a", []uint64{1}},
			{SessionEvents, "s", "b", []uint64{2}},
			{SessionBytes, "s", "b", []uint64{3}},
		}},
		{"nothing at all is allowed", sessionView{streams: two[:1]}, with(0, -1), []Removal{
			{SessionEvents, "s", "a", []uint64{1, 4, 5}},
		}},
		{"one open stream too many", sessionView{streams: two}, withStreams(1, -1), []Removal{
			{SessionStreams, "s", "a", []uint64{1, 4, 5}},
		}},
		{"no stream too many", sessionView{streams: two}, withStreams(2, -1), nil},
		{"streams before events", sessionView{streams: two}, withStreams(1, 2), []Removal{
			{SessionStreams, "s", "a", []uint64{1, 4, 5}},
			{SessionEvents, "s", "b", []uint64{2}},
		}},
		{"finished streams and empty ones are not open", sessionView{streams: []streamView{
			{name: "a", events: sized(1)},
			{name: "b", events: sized(2, 3), final: true},
			{name: "c", events: sized(4), markers: &markers{closes: at(0, 5)}},
			{name: "d", events: sized(6), markers: &markers{clears: at(0, 7)}},
			{name: "e", markers: &markers{clears: at(0, 8)}},
		}}, withStreams(1, -1), []Removal{{Cleared, "s", "d", []uint64{6}}}},
		{"none is open in a session that is closed", sessionView{exact: true, markers: &markers{closes: at(0, 7)}, streams: two}, withStreams(1, -1), nil},
		{"finished streams go first", sessionView{streams: []streamView{
			{name: "a", events: old(time.Hour, 1, 2)},
			{name: "b", events: old(time.Hour, 3, 9), final: true},
			{name: "c", events: old(time.Hour, 4, 7), final: true},
			{name: "d", events: old(time.Hour, 5, 6), markers: &markers{closes: at(time.Hour, 8)}},
			{name: "e", events: old(time.Minute, 10), final: true},
		}}, with(4, -1), []Removal{
			{SessionEvents, "s", "b", []uint64{3}},
			{SessionEvents, "s", "c", []uint64{4, 7}},
			{SessionEvents, "s", "d", []uint64{5, 6}},
		}},
		{"then the oldest", sessionView{streams: []streamView{
			{name: "a", events: old(time.Hour, 1, 4)}, {name: "b", events: old(time.Hour, 2, 3), final: true}, {name: "c", events: old(0, 5)},
		}}, with(2, -1), []Removal{
			{SessionEvents, "s", "a", []uint64{1}},
			{SessionEvents, "s", "b", []uint64{2, 3}},
		}},
		{"not within the grace", sessionView{streams: []streamView{
			{name: "a", events: old(time.Hour, 1)},
			{name: "b", events: old(5*time.Minute-time.Second, 2), final: true},
			{name: "c", events: old(time.Hour, 3), markers: &markers{closes: at(time.Minute, 4)}},
		}}, with(2, -1), []Removal{{SessionEvents, "s", "a", []uint64{1}}}},
		{"finished at the event that says so, closed later", sessionView{streams: []streamView{
			{name: "a", events: old(0, 1)}, {name: "b", events: old(5*time.Minute, 2), final: true, markers: &markers{closes: at(0, 4)}},
		}}, with(1, -1), []Removal{{SessionEvents, "s", "b", []uint64{2}}}},
		{"clear of a stream", sessionView{streams: []streamView{
			{name: "a", events: sized(1, 4, 9), markers: &markers{clears: at(0, 6)}}, {name: "b", events: sized(2)},
		}}, off, []Removal{{Cleared, "s", "a", []uint64{1, 4}}}},
		{"clear of the session", sessionView{markers: &markers{clears: at(0, 4)}, streams: two}, off, []Removal{
			{Cleared, "s", "a", []uint64{1, 4}},
			{Cleared, "s", "b", []uint64{2, 3}},
		}},
		{"limits count what a clear leaves", sessionView{markers: &markers{clears: at(0, 3)}, streams: two}, with(2, -1), []Removal{
			{Cleared, "s", "a", []uint64{1}},
			{Cleared, "s", "b", []uint64{2, 3}},
			{SessionEvents, "s", "a", []uint64{4}},
		}},
		{"events after a stream's close", sessionView{exact: true, streams: []streamView{
			{name: "a", events: sized(1, 4, 5), markers: &markers{closes: at(0, 3)}},
		}}, off, []Removal{{AfterClose, "s", "a", []uint64{4, 5}}}},
		{"events after the session's close", sessionView{exact: true, markers: &markers{closes: at(0, 4)}, streams: two}, off, []Removal{
			{AfterClose, "s", "a", []uint64{5}},
			{AfterClose, "s", "b", []uint64{6}},
		}},
		{"not while the ledger is not exact", sessionView{markers: &markers{closes: at(0, 4)}, streams: two}, off, nil},
		{"a close marker stays", sessionView{streams: []streamView{{name: "a", markers: &markers{closes: at(time.Hour, 3)}}}}, off, nil},
		{"superseded markers go", sessionView{
			markers: &markers{closes: at(0, 7, 8), clears: at(0, 5, 6)},
			streams: []streamView{{name: "a", markers: &markers{clears: at(0, 4)}}},
		}, off, []Removal{
			{Superseded, "s", "", []uint64{5, 8}},
			{Superseded, "s", "a", []uint64{4}},
		}},
		{"a clear marker goes in the end", sessionView{markers: &markers{clears: at(time.Minute, 4)}, streams: []streamView{{name: "a", events: sized(5)}}}, off, []Removal{
			{Superseded, "s", "", []uint64{4}},
		}},
		{"not while something lies before it", sessionView{markers: &markers{clears: at(time.Minute, 6)}, streams: []streamView{{name: "a", events: sized(5)}}}, off, []Removal{
			{Cleared, "s", "a", []uint64{5}},
		}},
		{"not before that is deleted", sessionView{pending: true, markers: &markers{clears: at(time.Minute, 6)}}, off, nil},
		{"not within a minute", sessionView{markers: &markers{clears: at(time.Minute-1, 6)}}, off, nil},
		{"closed within the grace", sessionView{state: session.Closed, ended: noon.Add(-5*time.Minute + 1), markers: &markers{closes: at(0, 9)}, streams: two}, off, nil},
		{"closed for long", sessionView{state: session.Closed, ended: noon.Add(-5 * time.Minute), markers: &markers{closes: at(0, 9)}, streams: two}, off, []Removal{
			{Closed, "s", "a", []uint64{1, 4, 5}},
			{Closed, "s", "b", []uint64{2, 3, 6}},
		}},
		{"closed for long, events doomed", sessionView{state: session.Closed, pending: true, markers: &markers{closes: at(0, 9)}}, off, nil},
		{"closed for long, events gone", sessionView{
			state: session.Closed, markers: &markers{closes: at(0, 9), clears: at(0, 7)},
			streams: []streamView{{name: "a", markers: &markers{closes: at(0, 8)}}},
		}, off, []Removal{
			{Superseded, "s", "", []uint64{7, 9}},
			{Superseded, "s", "a", []uint64{8}},
		}},
		{"closed without a record", sessionView{markers: &markers{closes: at(5*time.Minute, 9)}, streams: two[:1]}, off, []Removal{
			{Closed, "s", "a", []uint64{1, 4, 5}},
		}},
		{"closing is not closed", sessionView{state: session.Closing, ended: noon.Add(-time.Hour), streams: two}, off, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.view.name = "s"
			if got := policy(test.view, test.lim, noon); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
		})
	}
}
