package delivery

import (
	"fmt"
	"strings"
	"testing"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/inspect"
)

func TestHistory_Bounded(t *testing.T) {
	d := newHistory()
	gap := happening{what: inspect.Gapped, where: window.Place{Session: "s", Stream: "a"}, reason: "trimmed", certain: true}
	d.note(gap)
	for i := range maxComings {
		d.note(happening{what: inspect.Connected, where: window.Place{Session: fmt.Sprint("s", i%2), Stream: "a"}, number: uint64(i)})
	}
	_, total, since := d.OfSession("s1", 5)
	if total != maxComings/2 || since.UnixNano() != d.began {
		t.Fatalf("%d happened since %s", total, since)
	}
	const dropped = maxComings / 16
	last := d.comings.all[dropped-1].at
	d.note(happening{what: inspect.Ended, where: window.Place{Session: "s1", Stream: "a"}})
	newest, total, since := d.OfSession("s1", 5)
	if total != (maxComings-dropped)/2+1 || since.UnixNano() != last || len(newest) != 5 || newest[0].What != inspect.Ended || newest[1].Connection != maxComings-1 {
		t.Errorf("%d happened since %s: %s", total, since, edgetest.Happenings(newest))
	}
	if newest, reasons, total, since := d.Lately(10); total != 1 || reasons["trimmed"] != 1 || len(newest) != 1 || since.UnixNano() != d.began {
		t.Errorf("a storm of connects took a gap: %d, %v since %s", total, reasons, since)
	}
	for range maxGaps {
		d.note(gap)
	}
	newest, reasons, total, since := d.Lately(10)
	const kept = maxGaps - maxGaps/16 + 1
	if total != kept || reasons["trimmed"] != kept || len(newest) != 10 || since.UnixNano() <= d.began {
		t.Errorf("%d gaps, %v since %s", total, reasons, since)
	}
	d.gaps.all[0].at -= int64(2 * inspect.Kept) // the oldest
	if _, _, total, _ := d.Lately(10); total != kept-1 {
		t.Errorf("%d gaps within the hour", total)
	}
}

// A gap on a session's flow names its stream. The event ID is the client's, even if it is
// invalid; of a long one, the end is kept.
func TestGap_Text(t *testing.T) {
	d := newHistory()
	r := &cursor.Reader{Place: window.Place{Session: "s", Stream: ""}, ChainCursor: window.ChainCursor{Cursor: 9}}
	for _, g := range []cursor.Gap{{Reason: cursor.ReasonExpired, Stream: "a", Requested: event.ID{Stream: "a", Tag: "0000000", Sequence: 7}.String()}, {Reason: cursor.ReasonUnknown, Certain: true, Requested: "<b>"}, {Reason: cursor.ReasonUnknown, Certain: true, Requested: strings.Repeat("x", 999) + "_7"}} {
		d.noteGap(r, cursor.Step{Gaps: []cursor.Gap{g}, First: 9}, g, Request{number: 3})
	}
	newest, _, _ := d.OfSession("s", 5)
	if got := edgetest.Happenings(newest); got != "gap a expired false, asked for a_0000000_7, on from 8\ngap * unknown true, asked for <b>, on from 8\n"+
		"gap * unknown true, asked for "+strings.Repeat("x", inspect.MaxRequested-2)+"_7, on from 8" || newest[0].Connection != 3 || newest[0].Address != "" {
		t.Error(got)
	}
}
