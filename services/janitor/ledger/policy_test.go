package ledger

import (
	"reflect"
	"testing"
	"time"

	"rejoin/shared/eventlog"
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

// At returns a control entry that was stored a while before noon.
func at(age time.Duration, seq uint64) marker { return marker{seq, seq, noon.Add(-age)} }

// allOf returns the state of a life with control entries.
func allOf(m markers) LifeState { return LifeState{markers: &m} }

// All other removals by limits and clears are compared with a plainer policy in TestPolicy_Exact.
func TestPolicy(t *testing.T) {
	const key = "s x"
	off := Limits{MaxPerStream: -1, MaxEvents: -1, MaxBytes: -1, MaxStreams: -1, ClosedGrace: 5 * time.Minute}
	with := func(events, bytes int64) Limits {
		return Limits{MaxPerStream: -1, MaxEvents: events, MaxBytes: bytes, MaxStreams: -1, ClosedGrace: off.ClosedGrace}
	}
	withStreams := func(streams, events int64) Limits {
		return Limits{MaxPerStream: -1, MaxEvents: events, MaxBytes: -1, MaxStreams: streams, ClosedGrace: off.ClosedGrace}
	}
	two := []streamView{{name: "a", events: sized(1, 4, 5)}, {name: "b", events: sized(2, 3, 6)}}
	for _, test := range []struct {
		name string
		view LifeView
		lim  Limits
		want []Removal
	}{
		{"the oldest of all streams go first", LifeView{streams: two}, with(3, -1), []Removal{
			{SessionEvents, key, "a", []uint64{1}},
			{SessionEvents, key, "b", []uint64{2, 3}},
		}},
		{"events before bytes", LifeView{streams: two}, with(4, 30), []Removal{
			{SessionEvents, key, "a", []uint64{1}},
			{SessionEvents, key, "b", []uint64{2}},
			{SessionBytes, key, "b", []uint64{3}},
		}},
		{"streams before events", LifeView{streams: two}, withStreams(1, 2), []Removal{
			{SessionStreams, key, "a", []uint64{1, 4, 5}},
			{SessionEvents, key, "b", []uint64{2}},
		}},
		{"finished streams and empty ones are not open", LifeView{streams: []streamView{
			{name: "a", events: sized(1)},
			{name: "b", events: sized(2, 3), final: true},
			{name: "c", events: sized(4), end: at(0, 5)},
			{name: "d", events: sized(6), cleared: 7},
		}}, withStreams(1, -1), []Removal{{Cleared, key, "d", []uint64{6}}}},
		{"finished streams go first", LifeView{streams: []streamView{
			{name: "a", events: old(time.Hour, 1, 2)},
			{name: "b", events: old(time.Hour, 3, 9), final: true},
			{name: "c", events: old(time.Hour, 4, 7), final: true},
			{name: "d", events: old(time.Hour, 5, 6), end: at(time.Hour, 8)},
			{name: "e", events: old(time.Minute, 10), final: true},
		}}, with(4, -1), []Removal{
			{SessionEvents, key, "b", []uint64{3}},
			{SessionEvents, key, "c", []uint64{4, 7}},
			{SessionEvents, key, "d", []uint64{5, 6}},
		}},
		{"finished at the event that says so, ended later", LifeView{streams: []streamView{
			{name: "a", events: old(0, 1)}, {name: "b", events: old(5*time.Minute, 2), final: true, end: at(0, 4)},
		}}, with(1, -1), []Removal{{SessionEvents, key, "b", []uint64{2}}}},
		{"limits count what a clear leaves", LifeView{LifeState: allOf(markers{clear: at(0, 3)}), streams: two}, with(2, -1), []Removal{
			{Cleared, key, "a", []uint64{1}},
			{Cleared, key, "b", []uint64{2, 3}},
			{SessionEvents, key, "a", []uint64{4}},
		}},
		{"too many in one stream, and in the session", LifeView{streams: two}, Limits{2, 3, -1, -1, 0}, []Removal{
			{StreamEvents, key, "a", []uint64{1}},
			{StreamEvents, key, "b", []uint64{2}},
			{SessionEvents, key, "b", []uint64{3}},
		}},
		{"ended within the grace", LifeView{LifeState: allOf(markers{end: at(5*time.Minute-1, 9)}), streams: two}, off, nil},
		{"ended for long", LifeView{LifeState: allOf(markers{end: at(5*time.Minute, 9)}), streams: two}, off, []Removal{
			{Closed, key, "a", []uint64{1, 4, 5}},
			{Closed, key, "b", []uint64{2, 3, 6}},
		}},
		{"sealed for long and not ended", LifeView{LifeState: allOf(markers{seal: at(time.Hour, 9)}), streams: two}, off, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.view.session, test.view.life = "s", "x"
			if got := Policy(test.view, test.lim, noon); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
		})
	}
}

// The empty life has no opening and no fence: an opening of its session ends it.
func TestPolicy_EmptyLife(t *testing.T) {
	lim := Limits{MaxPerStream: -1, MaxEvents: -1, MaxBytes: -1, MaxStreams: -1, ClosedGrace: time.Hour}
	streams := []streamView{{name: "a", events: sized(1)}}
	opened := func(ago time.Duration) *Opening { return &Opening{Seq: 2, at: noon.Add(-ago)} }
	for name, test := range map[string]struct {
		opening *Opening
		life    string
		goes    bool
	}{
		"the session has no opening":     {nil, "", false},
		"opened for less than the grace": {opened(time.Hour - 1), "", false},
		"opened for the grace":           {opened(time.Hour), "", true},
		"a life that the opening is of":  {opened(time.Hour), "x", false},
	} {
		got := Policy(LifeView{LifeState: LifeState{session: "s", life: test.life, opening: test.opening}, streams: streams}, lim, noon)
		if (len(got) > 0) != test.goes {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnnouncements(t *testing.T) {
	many := make([]uint64, eventlog.MaxListed+1)
	for i := range many {
		many[i] = uint64(2*i + 1)
	}
	last := many[len(many)-1]
	trim := func(stream string, upTo uint64, reason eventlog.Reason, removed []uint64) eventlog.Trim {
		return eventlog.Trim{Session: "s", Life: "x", Stream: stream, UpTo: upTo, Reason: reason, Listed: removed}
	}
	for _, test := range []struct {
		name     string
		removals []Removal
		want     []eventlog.Trim
	}{
		{"nothing", nil, nil},
		{"of a stream, cleared before the rest", []Removal{{Cleared, "s x", "a", []uint64{1, 3}}, {StreamEvents, "s x", "a", []uint64{5}}}, []eventlog.Trim{
			trim("a", 3, eventlog.Cleared, []uint64{1, 3}), trim("a", 5, eventlog.Trimmed, []uint64{5}),
		}},
		{"more than a trim may name", []Removal{{SessionEvents, "s x", "a", many}}, []eventlog.Trim{
			trim("a", last-2, eventlog.Trimmed, many[:eventlog.MaxListed]), trim("a", last, eventlog.Trimmed, []uint64{last}),
		}},
		{"a whole life", []Removal{{Closed, "s x", "b", []uint64{2, 5}}, {Closed, "s x", "a", []uint64{1, 7}}}, []eventlog.Trim{
			trim("", 7, eventlog.Trimmed, []uint64{1, 2, 5, 7}),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []eventlog.Trim
			for i, a := range Announcements(test.removals) {
				if got = append(got, a.Trim); a.Cause != test.removals[min(i, len(test.removals)-1)].Cause {
					t.Errorf("number %d is for %s", i, a.Cause)
				}
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}
