package edge

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"rejoin/services/sse-edge/window"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// emptyWindow is a window that has caught up with an empty partition.
func emptyWindow(budget int) *window.Window {
	w := window.New(budget, func(string) {})
	w.Begin(eventlog.State{Birth: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1}, 0, 1)
	w.Through(0, 0)
	return w
}

func messageAt(sequence uint64, at window.Place, data string) eventlog.Entry {
	return eventlog.Entry{
		Subject: event.Subject{Session: at.Session, Life: at.Life, Stream: at.Stream}, Valid: true,
		Sequence: sequence, Time: time.Unix(0, int64(sequence)), Type: "message", Data: []byte(data), //nolint:gosec // small
	}
}

func readerAt(w *window.Window, at window.Place, cursor uint64) *reader {
	return &reader{place: at, Subscriber: window.Subscriber{Chain: w.Attach(at, false, 0).Chain, Cursor: cursor}, tags: newTagger(event.Place{})}
}

func TestFramesAreJoinedOnlyWithinASegment(t *testing.T) {
	w := emptyWindow(16 << 10) // segments of 1 KiB
	at := placeOf("s", "a")
	for n := uint64(1); n <= 60; n++ {
		w.Append(messageAt(n, at, fmt.Sprintf(`{"n":%d}`, n)), 0)
	}
	v := w.Read(&readerAt(w, at, 0).Subscriber, window.Limits{Events: 100, Bytes: 1 << 20}, nil)
	var want []byte
	for i := range v.Items {
		want = append(want, v.Items[i].Frame...)
	}
	var o outbox
	o.frames(v.Items)
	if got := bytes.Join(o.buffers, nil); !bytes.Equal(got, want) {
		t.Errorf("the joined frames are not the frames:\n%s\n%s", got, want)
	}
	if len(o.buffers) < 2 || len(o.buffers) > 10 {
		t.Errorf("%d frames make %d buffers", len(v.Items), len(o.buffers))
	}
}

// Another edge was faster, and what it showed was lost before this one has seen it.
func TestAReaderAheadOfTheWindowHearsOfARollBackBehindTheWindow(t *testing.T) {
	w := emptyWindow(1 << 20)
	w.Append(messageAt(1, placeOf("s", "a"), "1"), 0)
	ahead, level := readerAt(w, placeOf("s", "a"), 5), readerAt(w, placeOf("s", "a"), 1)
	fresh := readerAt(w, placeOf("s", "a"), 5) // its client has seen nothing that could be lost
	fresh.fresh = true
	w.GoOn(eventlog.State{Birth: "b", Generations: []event.Generation{{ID: "b", Start: 1}, {ID: "next", Start: 3}}})
	for r, told := range map[*reader]bool{ahead: true, level: false, fresh: false} {
		v := w.Read(&r.Subscriber, window.Limits{Events: 1, Bytes: 1}, nil)
		var s step
		if v.Rollbacks > r.Rollbacks {
			r.rolledBack(v, &s)
		}
		if len(s.gaps) > 0 != told || told && r.Cursor != 2 {
			t.Errorf("a reader is told %v and stands at %d", s.gaps, r.Cursor)
		}
	}
}
