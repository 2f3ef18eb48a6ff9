package window

import (
	"bytes"
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/tracing"
	"rejoin/shared/waittest"
)

func testState(last uint64) eventlog.State {
	return eventlog.State{Origin: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1, Last: last}
}

func message(sequence uint64, at Place, data string) eventlog.Entry {
	return eventlog.Entry{
		Subject: event.Subject{Session: at.Session, Life: at.Life, Stream: at.Stream}, Valid: true,
		Sequence: sequence, Time: time.Unix(0, int64(sequence)), Type: "message", Data: []byte(data), //nolint:gosec // small
	}
}

func controlEntry(sequence uint64, at Place, kind event.Kind) eventlog.Entry {
	return eventlog.Entry{Subject: event.Subject{Session: at.Session, Life: at.Life, Stream: at.Stream, Kind: kind}, Valid: true, Sequence: sequence}
}

func trimOf(sequence uint64, at Place, removed ...uint64) eventlog.Entry {
	e := controlEntry(sequence, at, event.Trim)
	e.Trim = &eventlog.Trim{Session: at.Session, Life: at.Life, Stream: at.Stream, Reason: eventlog.Trimmed, Listed: removed}
	if n := len(removed); n > 0 {
		e.Trim.UpTo = removed[n-1]
	}
	return e
}

func newTestWindow(budget int) *Window {
	w := New(budget, func(string) {})
	w.Begin(testState(0), 0, 1)
	w.Reach(0, 0)
	return w
}

func cursorAt(w *Window, at Place, cursor uint64) *ChainCursor {
	return &ChainCursor{Chain: w.Attach(at, false, 0).Chain, Cursor: cursor}
}

func streamOf(session, stream string) Place { return Place{Session: session, Stream: stream} }

func opening(sequence uint64, session, life string) eventlog.Entry {
	return eventlog.Entry{
		Subject: event.Subject{Session: session, Kind: event.Open}, Valid: true,
		Sequence: sequence, Data: fmt.Appendf(nil, `{"life":%q}`, life),
	}
}

// The window against the simplest model: a slice of all appended events. A read must
// return the model's events of the place after the cursor, without the cleared ones; a
// place is closed when its end, or the opening of another life, is its last entry in
// the model.
func TestWindow_ReadsWhatWasAppended(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(rapid.SampledFrom([]int{1, 2 << 10, 6 << 10, 1 << 20}).Draw(t, "budget"))
		type modelled struct {
			at       Place
			sequence uint64
			data     string
		}
		var model []modelled
		closed := map[Place]uint64{}
		opened := map[string]string{} // the life of a session that was opened, "several" when there are more
		sequence := uint64(0)
		var places []Place
		for _, session := range []string{"s", "t"} {
			for _, life := range []string{"one", "two"} {
				for _, stream := range []string{"a", "b"} {
					places = append(places, Place{session, life, stream})
				}
			}
		}
		within := func(at, in Place) bool {
			return at.Session == in.Session && at.Life == in.Life && (in.Stream == "" || at.Stream == in.Stream)
		}
		readers := map[Place]*ChainCursor{}
		check := func(at Place, cursor uint64, r *ChainCursor) {
			var want []string
			for _, m := range model {
				if within(m.at, at) && m.sequence > cursor {
					want = append(want, m.data)
				}
			}
			var got []string
			for {
				v := w.Read(r, Limits{Events: rapid.IntRange(1, 7).Draw(t, "limit"), Bytes: 300}, nil)
				if !v.Inside {
					return
				}
				for _, it := range v.Items {
					_, data := FrameParts(it.Frame)
					got = append(got, string(data))
				}
				r.Cursor, r.LastNumber = v.Through, v.LastNumber
				if len(v.Items) == 0 || !v.More {
					if v.EndedAt != 0 && closed[at] == 0 && closed[Place{at.Session, at.Life, ""}] == 0 && opened[at.Session] == at.Life {
						t.Fatalf("%v is closed at %d", at, v.EndedAt)
					}
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%v after %d: got %d events %q, want %d %q", at, cursor, len(got), got, len(want), want)
			}
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			at := rapid.SampledFrom(places).Draw(t, "place")
			switch rapid.IntRange(0, 20).Draw(t, "op") {
			case 0:
				sequence++
				if rapid.Bool().Draw(t, "session") {
					at.Stream = ""
				}
				w.Append(controlEntry(sequence, at, event.Clear), 0)
				model = slices.DeleteFunc(model, func(m modelled) bool { return within(m.at, at) })
			case 1:
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					sequence++
					w.Append(controlEntry(sequence, at, event.End), 0)
					closed[at] = sequence
				}
			case 2, 3:
				cursor := uint64(rapid.IntRange(0, int(sequence)).Draw(t, "cursor")) //nolint:gosec // small
				if rapid.Bool().Draw(t, "flow") {
					at.Stream = ""
				}
				r := cursorAt(w, at, cursor)
				check(at, cursor, r)
				w.Detach(r.Chain)
			case 4, 5:
				if readers[at] == nil {
					readers[at] = cursorAt(w, at, sequence)
				}
				check(at, readers[at].Cursor, readers[at])
			case 7: // the window keeps its events, also when they are deleted in the log
				sequence++
				if rapid.Bool().Draw(t, "life") {
					at.Stream = ""
				}
				var removed []uint64
				for n := uint64(1); n < sequence; n++ {
					removed = append(removed, n)
				}
				w.Append(trimOf(sequence, at, removed...), 0)
				r := cursorAt(w, at, 0)
				check(at, 0, r)
				w.Detach(r.Chain)
			case 6:
				sequence++
				w.Append(opening(sequence, at.Session, at.Life), 0)
				if of := opened[at.Session]; of == "" || of == at.Life {
					opened[at.Session] = at.Life
				} else {
					opened[at.Session] = "several"
				}
			default:
				sequence++
				data := fmt.Sprintf(`{"n":%d,"pad":%q}`, sequence, bytes.Repeat([]byte("x"), rapid.IntRange(0, 60).Draw(t, "size")))
				w.Append(message(sequence, at, data), 0)
				model = append(model, modelled{at, sequence, data})
				delete(closed, at)
				delete(closed, Place{at.Session, at.Life, ""})
			}
			if got := w.Stats(); got.Start > 1 && got.Events+len(w.controls) == 0 && sequence == got.End && got.Start != got.End+1 && len(model) > 0 {
				t.Fatalf("the start is %d at the end %d", got.Start, got.End)
			}
		}
	})
}

func TestWindow_Budget(t *testing.T) {
	const budget = 64 << 10
	w := newTestWindow(budget)
	for n := uint64(1); n <= 5000; n++ {
		at := streamOf("s", fmt.Sprint(n%10))
		w.Append(message(n, at, `{"jsonrpc":"2.0","method":"m"}`), 0)
		if got := w.Stats(); got.Bytes > budget+maxSegment/16 {
			t.Fatalf("after %d events the window takes %d bytes of %d", n, got.Bytes, budget)
		}
	}
	got := w.Stats()
	if got.Start == 1 || got.Events < 100 {
		t.Fatalf("the window holds %d events from %d on", got.Events, got.Start)
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.chains) > 11 {
		t.Errorf("%d chains for 10 streams and a flow", len(w.chains))
	}
}

// Chains of streams without readers are dropped with their last event, or the
// window would grow with every stream.
func TestWindow_ForgetsStreams(t *testing.T) {
	w := newTestWindow(32 << 10)
	for n := uint64(1); n <= 20000; n++ {
		w.Append(message(n, streamOf(fmt.Sprint("s", n), "a"), `{}`), 0)
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if held := int(w.ring.next - w.ring.first); len(w.chains) != 2*held || len(w.byNumber)-len(w.free) != held { //nolint:gosec // small
		t.Errorf("%d chains and %d numbers for %d events", len(w.chains), len(w.byNumber)-len(w.free), held)
	}
}

// A name may be used again while a window that is seldom written to still has the events of
// the previous life: a reader gets the events of its own life, and its end with the opening
// of the next one.
func TestWindow_LivesOfANameAreApart(t *testing.T) {
	w := newTestWindow(1 << 20)
	old := Place{"s", "one", "a"}
	w.Append(opening(1, "s", "one"), 0)
	w.Append(message(2, old, `{"old":1}`), 0)
	reading := cursorAt(w, old, 0)
	w.Append(opening(3, "s", "two"), 0)
	w.Append(message(4, Place{"s", "two", "a"}, `{"new":1}`), 0)
	all := Limits{Events: 100, Bytes: 1 << 20}
	if v := w.Read(reading, all, nil); len(v.Items) != 1 || v.Items[0].Sequence != 2 || v.EndedAt != 3 {
		t.Errorf("the reader of the life before has %d events and its end at %d", len(v.Items), v.EndedAt)
	}
	for _, at := range []Place{{"s", "", "a"}, {"s", "", ""}} { // the window has to find the life
		r := cursorAt(w, at, 0)
		if v := w.Read(r, all, nil); len(v.Items) != 1 || v.Items[0].Sequence != 4 || v.EndedAt != 0 || v.Life != "two" {
			t.Errorf("%v: %d events of life %q, end at %d", at, len(v.Items), v.Life, v.EndedAt)
		}
	}
	w.Append(message(5, old, `{"late":1}`), 0) // only damage does that; nothing is hidden
	if v := w.Read(reading, all, nil); len(v.Items) != 2 || v.EndedAt != 0 {
		t.Errorf("with an event after its end the life before has %d events, end at %d", len(v.Items), v.EndedAt)
	}
}

// A client that connects and disconnects does not make a window forget a session without events.
func TestWindow_SilentSessionIsKnown(t *testing.T) {
	w := newTestWindow(1 << 20)
	w.Append(opening(1, "s", "one"), 0)
	w.Detach(w.Attach(Place{Session: "s", Life: "one"}, false, 0).Chain)
	if life, known, whole := w.LifeOf("s"); life != "one" || !known {
		t.Errorf("the life is %q (%t, %t)", life, known, whole)
	}
}

// A window that begins after an opening learns the life from the first event, or from a reader
// that looked in the log; an older opening has no effect then.
func TestWindow_WaitingChainsTakeTheFirstLifeThatIsKnown(t *testing.T) {
	for name, begin := range map[string]func(*Window){
		"event":   func(w *Window) { w.Append(message(7, Place{"s", "one", "b"}, `{}`), 0) },
		"opening": func(w *Window) { w.Append(opening(7, "s", "one"), 0) },
		"look":    func(w *Window) { w.Attach(Place{"s", "one", ""}, true, 3) },
		"reader": func(w *Window) { // it has the life from the registry
			w.Attach(Place{"s", "one", ""}, false, 0)
			w.Append(opening(7, "s", "one"), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWindow(1 << 20)
			stream, flow := cursorAt(w, streamOf("s", "a"), 0), cursorAt(w, streamOf("s", ""), 0)
			begin(w)
			w.Append(message(8, Place{"s", "one", "a"}, `{}`), 0)
			for _, r := range []*ChainCursor{stream, flow} {
				v := w.Read(r, Limits{Events: 100, Bytes: 1 << 20}, nil)
				if len(v.Items) == 0 || v.Life != "one" {
					t.Errorf("%d events, life %q", len(v.Items), v.Life)
				}
				w.Detach(r.Chain)
			}
		})
	}
}

// The log may name a life before the tail reaches its opening. An opening of the previous life, which the janitor has
// written again in between, does not name the owner of the newest one.
func TestWindow_OwnerOfALifeAheadOfTheTail(t *testing.T) {
	w := newTestWindow(1 << 20)
	open := func(sequence uint64, life, owner string) {
		e := opening(sequence, "s", life)
		e.Data = fmt.Appendf(nil, `{"life":%q,"owner":%q}`, life, owner)
		w.Append(e, 0)
	}
	open(1, "one", "anna")
	w.Attach(Place{"s", "two", ""}, true, 3)
	open(2, "one", "anna")
	if v, _ := w.Session("s"); v.Life != "two" || v.Owner != "" {
		t.Errorf("life %s is of %q", v.Life, v.Owner)
	}
	open(3, "two", "ben")
	if v, _ := w.Session("s"); v.Life != "two" || v.Owner != "ben" {
		t.Errorf("life %s is of %q", v.Life, v.Owner)
	}
}

// After a roll-back the window forgets lives and ends: the log may have lost them.
func TestWindow_RollBackForgetsLivesAndEnds(t *testing.T) {
	w := newTestWindow(1 << 20)
	at := Place{"s", "one", "a"}
	w.Append(message(1, at, `{}`), 0)
	r := cursorAt(w, at, 1)
	w.Append(controlEntry(2, at, event.End), 0)
	w.Append(opening(3, "s", "two"), 0)
	w.Rollback(testState(1), 1, 2, 1)
	w.Reach(1, 0)
	r.Forks = 1
	if life, known, _ := w.LifeOf("s"); known {
		t.Errorf("the life is %q", life)
	}
	w.Append(message(2, at, `{}`), 0)
	if v := w.Read(r, Limits{Events: 100, Bytes: 1 << 20}, nil); len(v.Items) != 1 || v.EndedAt != 0 {
		t.Errorf("%d events, closed at %d", len(v.Items), v.EndedAt)
	}
}

// A roll-back may remove an opening while a reader is connected. A reader without a life then joins the life of
// the connected one, which the publisher continues, and not one that has ended.
func TestWindow_RollBackTakesTheOpeningOfAReader(t *testing.T) {
	for _, connected := range []Place{{"s", "one", "a"}, {"s", "one", "b"}, {"s", "one", ""}} {
		w := newTestWindow(1 << 20)
		cursorAt(w, connected, 0)
		w.Append(opening(1, "s", "one"), 0)
		w.Rollback(testState(0), 0, 1, 0)
		w.Reach(0, 0)
		for _, at := range []Place{streamOf("s", "a"), streamOf("s", "")} {
			r := cursorAt(w, at, 0)
			r.Forks = len(w.forks)
			w.Append(message(w.end+1, Place{"s", "one", "a"}, `{}`), 0)
			if v := w.Read(r, Limits{Events: 100, Bytes: 1 << 20}, nil); len(v.Items) != 1 || v.Life != "one" || v.EndedAt != 0 {
				t.Errorf("with a reader of %v, %v has %d events of life %q, end at %d", connected, at, len(v.Items), v.Life, v.EndedAt)
			}
			w.Detach(r.Chain)
			w.Rollback(testState(0), 0, 1, 0)
			w.Reach(0, 0)
		}
		forgotten := trimOf(1, Place{"s", "one", ""})
		forgotten.Trim.Forgotten = true
		for _, over := range []eventlog.Entry{controlEntry(1, Place{"s", "one", ""}, event.End), forgotten} {
			w.Append(over, 0)
			a := w.Attach(streamOf("s", ""), false, 0)
			if a.Life != "" {
				t.Errorf("a reader joined life %q, which has ended", a.Life)
			}
			w.Detach(a.Chain)
			w.Rollback(testState(0), 0, 1, 0)
		}
	}
}

// After a roll-back the window lacks the log's entries until it is filled again, also where all of the log
// fits into it.
func TestWindow_RolledBackHasNotCaughtUp(t *testing.T) {
	w := newTestWindow(1 << 20)
	at := Place{"s", "one", "a"}
	w.Append(message(1, at, `{}`), 0)
	before := w.CaughtUp()
	r := cursorAt(w, at, 1)
	w.Rollback(testState(1), 0, 1, 1)
	if _, _, whole := w.LifeOf("other"); whole || w.Attach(at, false, 0).CaughtUp {
		t.Error("the window has caught up before it was filled again")
	}
	waittest.Receive(t, "the window had caught up before", before)
	now := w.CaughtUp()
	select {
	case <-now:
		t.Error("a reader that is opened does not wait")
	default:
	}
	w.Append(message(5, at, `{}`), 4)
	changed := w.Changed(r.Chain)
	w.Reach(5, 0)
	waittest.Receive(t, "the window has caught up", now)
	waittest.Receive(t, "its readers are woken", changed)
	if _, _, whole := w.LifeOf("other"); !whole {
		t.Error("the window has not caught up")
	}
}

// The end comes after the last event, and must not keep the chain.
func TestWindow_ForgetsEndedStreams(t *testing.T) {
	w := newTestWindow(16 << 10)
	for n := uint64(1); n < 4000; n += 2 {
		at := streamOf(fmt.Sprint("s", n), "a")
		w.Append(message(n, at, `{}`), 0)
		at.Stream = ""
		w.Append(controlEntry(n+1, at, event.End), 0)
	}
	if n := len(w.chains); n > 2*w.Stats().Events+10 {
		t.Errorf("the window has %d chains for %d events", n, w.Stats().Events)
	}
}

func TestWindow_ControlEntriesAlone(t *testing.T) {
	for _, kind := range []event.Kind{event.End, event.Clear, event.Trim} {
		t.Run(kind.String(), func(t *testing.T) {
			w := newTestWindow(64 << 10)
			for n := uint64(1); n < 4000; n++ {
				e := trimOf(n, streamOf(fmt.Sprint("s", n), "a"))
				e.Subject.Kind = kind
				w.Append(e, 0)
			}
			if n := len(w.chains); n > 1000 {
				t.Errorf("the window has %d chains", n)
			}
		})
	}
}

func TestWindow_TailJumps(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b := streamOf("s", "a"), streamOf("s", "b")
	w.Append(message(1, a, `1`), 0)
	w.Append(message(5, b, `5`), 3)
	r := cursorAt(w, a, 1)
	v := w.Read(r, Limits{10, 1 << 20}, nil)
	if !v.Inside || v.JumpEnd != 5 || len(v.Items) != 0 || v.Through != 5 {
		t.Errorf("%+v", v)
	}
}

// A trim shows the events of a stream that the tail missed: events in the window, or of other
// streams, are not missing.
func TestWindow_TrimOfWhatTheTailMissed(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b, all := streamOf("s", "a"), streamOf("s", "b"), streamOf("s", "")
	w.Append(message(1, a, `1`), 0)
	w.Append(message(2, b, `2`), 0)
	w.Append(message(6, a, `6`), 3)
	want := func(at Place, cursor uint64, want ...eventlog.Loss) {
		t.Helper()
		r := cursorAt(w, at, cursor)
		defer w.Detach(r.Chain)
		if v := w.Read(r, Limits{10, 1 << 20}, nil); !slices.Equal(v.Losses, want) {
			t.Errorf("%v after %d: %v, want %v", at, cursor, v.Losses, want)
		}
	}
	reader := cursorAt(w, a, 1)
	woken := w.Changed(reader.Chain)
	w.Append(trimOf(7, a, 1, 6), 0)
	if isClosed(woken) {
		t.Error("a trim of what the window holds wakes readers")
	}
	w.Append(trimOf(8, a, 1, 3, 6), 0)
	if !isClosed(woken) {
		t.Error("what is missing is not reported")
	}
	lost := eventlog.Loss{Stream: "a", UpTo: 3, Reason: eventlog.Trimmed, Certain: true}
	want(a, 2, lost)
	want(a, 3)
	want(b, 2)
	want(all, 2, lost)
	w.Append(trimOf(9, all, 2, 4, 5), 0)
	want(b, 4, eventlog.Loss{Stream: "b", UpTo: 5, Reason: eventlog.Trimmed, Certain: false})
	want(b, 5)
	want(all, 4, eventlog.Loss{Stream: "", UpTo: 5, Reason: eventlog.Trimmed, Certain: false})
	w.Append(trimOf(10, b, 2, 4), 0)
	want(b, 3, eventlog.Loss{Stream: "b", UpTo: 4, Reason: eventlog.Trimmed, Certain: true}, eventlog.Loss{Stream: "b", UpTo: 5, Reason: eventlog.Trimmed, Certain: false})
	want(b, 4, eventlog.Loss{Stream: "b", UpTo: 5, Reason: eventlog.Trimmed, Certain: false})
}

// A reader below the window asks the log again after each trim, also after one that this version cannot read.
func TestWindow_UnreadableTrim(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b, all := streamOf("s", "a"), streamOf("s", "b"), streamOf("s", "")
	want := func(at Place, want uint64) {
		t.Helper()
		r := cursorAt(w, at, 0)
		defer w.Detach(r.Chain)
		if newest, _ := w.Trims(r.Chain); newest != want {
			t.Errorf("the newest trim of %v is %d, want %d", at, newest, want)
		}
	}
	w.Append(trimOf(1, a), 0)
	w.Append(controlEntry(2, a, event.Trim), 0)
	want(a, 2)
	want(b, 0)
	want(all, 2)
	w.Append(controlEntry(3, all, event.Trim), 0)
	want(b, 3)
}

// A janitor that was held up names sequences that have been assigned again since.
func TestWindow_TrimOfAnEarlierGeneration(t *testing.T) {
	a := streamOf("s", "a")
	for start, lost := range map[uint64]int{2: 0, 3: 1} {
		w := New(1<<20, func(string) {})
		state := testState(0)
		state.Generations = append(state.Generations, event.Generation{ID: "later", Start: start})
		w.Begin(state, 0, 1)
		w.Append(message(4, a, `4`), 3)
		trim := trimOf(5, a, 2)
		trim.Trim.Generation = "b"
		w.Append(trim, 0)
		r := cursorAt(w, a, 0)
		newest, _ := w.Trims(r.Chain)
		if v := w.Read(r, Limits{10, 1 << 20}, nil); len(v.Losses) != lost || newest != 5 {
			t.Errorf("the later one begins at %d: %v, and the newest trim is %d", start, v.Losses, newest)
		}
	}
}

// A flow reports one loss for the clear of its session, and none for a stream that lost less than that.
func TestWindow_LossesOfAClearedSession(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b, all := streamOf("s", "a"), streamOf("s", "b"), streamOf("s", "")
	w.Append(message(1, a, `1`), 0)
	w.Append(message(3, b, `3`), 1)
	w.Append(controlEntry(4, all, event.Clear), 0)
	w.Append(trimOf(5, a, 2), 0) // the tail missed event 2 before the clear
	want := func(cursor uint64, want ...eventlog.Loss) {
		t.Helper()
		r := cursorAt(w, all, cursor)
		defer w.Detach(r.Chain)
		v := w.Read(r, Limits{10, 1 << 20}, nil)
		slices.SortFunc(v.Losses, func(a, b eventlog.Loss) int { return cmp.Compare(a.UpTo, b.UpTo) })
		if !slices.Equal(v.Losses, want) {
			t.Errorf("after %d: %v, want %v", cursor, v.Losses, want)
		}
	}
	whole, last := eventlog.Loss{Stream: "", UpTo: 3, Reason: eventlog.Cleared, Certain: true}, eventlog.Loss{Stream: "b", UpTo: 6, Reason: eventlog.Cleared, Certain: true}
	want(0, whole)
	w.Append(message(6, b, `6`), 0)
	w.Append(controlEntry(7, b, event.Clear), 0)
	want(0, whole, last)
	want(3, last)
	want(6)
}

// A flow drops its losses before the window's start, also when each is of another stream.
func TestWindow_ForgetsLosses(t *testing.T) {
	w := newTestWindow(1 << 20)
	flow := cursorAt(w, streamOf("s", ""), 0).Chain
	sequence := uint64(0)
	for n := range 10_000 {
		at := streamOf("s", fmt.Sprint(n))
		w.Append(message(sequence+1, at, `1`), 0)
		w.Append(controlEntry(sequence+2, at, event.Clear), 0)
		sequence += 2
	}
	inside := 0
	for _, l := range flow.losses {
		if l.UpTo >= w.start {
			inside++
		}
	}
	if w.start == 1 || inside == 0 || len(flow.losses) > 4*inside {
		t.Errorf("%d losses, %d of them in the window, which starts at %d", len(flow.losses), inside, w.start)
	}
}

// Whatever a janitor deletes while a tail runs, a reader receives exactly the losses that the
// tail missed, once the tail has reached the end.
func TestWindow_TellsAllThatTheTailMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(1 << 20)
		streams := []string{"a", "b"}
		log := []eventlog.Entry{{}} // by sequence
		deleted, received := map[uint64]bool{}, map[uint64]bool{}
		var announced []uint64
		ofLife := 0 // the sequence up to which a trim of the life was announced
		tail := func() (more bool) {
			end := w.Stats().End
			for n := end + 1; n < uint64(len(log)); n++ {
				if !deleted[n] {
					w.Append(log[n], n-end-1)
					received[n] = true
					return true
				}
			}
			return false
		}
		isEvent := func(n uint64) bool { return log[n].Subject.Kind == event.Message }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at := streamOf("s", rapid.SampledFrom(streams).Draw(t, "stream"))
			next := uint64(len(log))
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0, 1:
				upTo := rapid.IntRange(ofLife, len(log)-1).Draw(t, "up to")
				if rapid.IntRange(0, 3).Draw(t, "life") == 0 {
					at.Stream, ofLife = "", upTo
				}
				again := rapid.Bool().Draw(t, "list again")
				e := trimOf(next, at)
				for n := uint64(1); n <= uint64(upTo); n++ { //nolint:gosec // small
					if isEvent(n) && (at.Stream == "" || log[n].Subject.Stream == at.Stream) {
						if e.Trim.UpTo = n; !slices.Contains(announced, n) || again && !deleted[n] {
							e.Trim.Listed = append(e.Trim.Listed, n)
						}
					}
				}
				log = append(log, e)
				announced = append(announced, e.Trim.Listed...)
			case 2, 3, 4:
				if len(announced) > 0 {
					deleted[rapid.SampledFrom(announced).Draw(t, "deleted")] = true
				}
			case 5, 6:
				tail()
			default:
				log = append(log, message(next, at, `{}`))
			}
		}
		for tail() {
		}
		for _, stream := range append(streams, "") {
			cursor := uint64(rapid.IntRange(0, len(log)-1).Draw(t, "cursor")) //nolint:gosec // small
			missed := uint64(0)
			for n := cursor + 1; n < uint64(len(log)); n++ {
				if isEvent(n) && !received[n] && (stream == "" || log[n].Subject.Stream == stream) {
					missed = n
				}
			}
			r := cursorAt(w, streamOf("s", stream), cursor)
			v := w.Read(r, Limits{Events: 100, Bytes: 1 << 20}, nil)
			told, certain := uint64(0), false
			for _, l := range v.Losses {
				told, certain = max(told, l.UpTo), certain || l.Certain
			}
			if told < missed || told > 0 && missed == 0 && (certain || ofLife == 0) {
				t.Fatalf("%q after %d: missed %d, told %v", stream, cursor, missed, v.Losses)
			}
			w.Detach(r.Chain)
		}
	})
}

// Control entries that the janitor writes again change nothing.
func TestWindow_Copies(t *testing.T) {
	w := newTestWindow(1 << 20)
	old, at := Place{"s", "zero", "a"}, Place{"s", "one", "a"}
	w.Append(message(1, old, `{}`), 0)
	w.Append(opening(2, "s", "one"), 0)
	w.Append(message(3, at, `{}`), 0)
	w.Append(message(4, Place{"s", "one", "b"}, `{}`), 0)
	w.Append(controlEntry(5, Place{"s", "one", "b"}, event.End), 0)
	w.Append(message(6, old, `{}`), 0) // only damage does that, and it cancels the end
	closed := func(at Place) uint64 {
		r := cursorAt(w, at, 0)
		defer w.Detach(r.Chain)
		return w.Read(r, Limits{10, 1 << 20}, nil).EndedAt
	}
	connected := cursorAt(w, at, 3)
	woken := w.Changed(connected.Chain)
	w.Append(opening(7, "s", "one"), 0)
	w.Append(controlEntry(8, Place{"s", "one", "b"}, event.End), 0)
	if isClosed(woken) || closed(at) != 0 || closed(old) != 0 || closed(Place{"s", "one", "b"}) != 5 {
		t.Errorf("ends: %d, %d, %d", closed(at), closed(old), closed(Place{"s", "one", "b"}))
	}
	if life, known, _ := w.LifeOf("s"); life != "one" || !known {
		t.Errorf("the life is %q", life)
	}
}

func TestWait_WakesOnlyItsStream(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b := streamOf("s", "a"), streamOf("s", "b")
	ra, rb, flow := cursorAt(w, a, 0), cursorAt(w, b, 0), cursorAt(w, Place{Session: "s"}, 0)
	wa, wb, wf := w.Changed(ra.Chain), w.Changed(rb.Chain), w.Changed(flow.Chain)
	w.Append(message(1, a, `1`), 0)
	if !isClosed(wa) || isClosed(wb) || !isClosed(wf) {
		t.Errorf("woken: a %v, b %v, flow %v", isClosed(wa), isClosed(wb), isClosed(wf))
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestFrameParts_Inverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.StringMatching(`[a-z{}:"\n]{0,40}`).Draw(t, "data")
		typ := rapid.SampledFrom([]string{"message", "progress", "data: x"}).Draw(t, "type")
		gotType, got := FrameParts(AppendFrame(nil, []byte("s_1234567_"), 7, typ, []byte(data)))
		if gotType != typ || string(got) != data {
			t.Fatalf("got %q %q, want %q %q", gotType, got, typ, data)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	w := newTestWindow(256 << 20)
	e := message(0, streamOf("session", "stream"), `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"`+string(bytes.Repeat([]byte("x"), 430))+`"}}`)
	b.ReportAllocs()
	for b.Loop() {
		e.Sequence++
		w.Append(e, 0)
	}
}

func BenchmarkEncode(b *testing.B) {
	data := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + string(bytes.Repeat([]byte("x"), 430)) + `"}}`)
	var frame []byte
	b.ReportAllocs()
	for b.Loop() {
		frame = AppendFrame(frame[:0], []byte("stream_1234567_"), 123456, "message", data)
	}
}

func BenchmarkReadAfterCursor(b *testing.B) {
	w := newTestWindow(256 << 20)
	const events, streams = 200_000, 1000
	for n := uint64(1); n <= events; n++ {
		w.Append(message(n, streamOf("s", fmt.Sprint(n%streams)), `{"jsonrpc":"2.0","method":"m"}`), 0)
	}
	r := cursorAt(w, streamOf("s", "7"), 0)
	items := make([]Item, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		r.Cursor, r.LastNumber = events-50*streams, 0
		if v := w.Read(r, Limits{1024, 256 << 10}, items); len(v.Items) != 50 {
			b.Fatal(len(v.Items))
		}
	}
}

// A cursor far behind in a stream that has the window to itself.
func BenchmarkFindFarBehind(b *testing.B) {
	w := newTestWindow(256 << 20)
	const events = 500_000
	for n := uint64(1); n <= events; n++ {
		w.Append(message(n, streamOf("s", "a"), `{"jsonrpc":"2.0","method":"m"}`), 0)
	}
	r := cursorAt(w, streamOf("s", "a"), 0)
	items := make([]Item, 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		r.Cursor, r.LastNumber = w.start+uint64(b.N*7919)%1000, 0 //nolint:gosec // positive
		if v := w.Read(r, Limits{1, 1 << 10}, items); len(v.Items) != 1 || v.Items[0].Sequence != r.Cursor+1 {
			b.Fatal(v.Items)
		}
	}
}

// The time that a stream takes of a clear does not depend on how many streams the session has: the clear holds
// the window's lock.
func BenchmarkClear(b *testing.B) {
	for _, streams := range []uint64{1000, 10_000} {
		for name, each := range map[string]bool{"session": false, "each stream": true} {
			b.Run(fmt.Sprintf("%s/streams=%d", name, streams), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					w := newTestWindow(64 << 20)
					for n := range streams {
						w.Append(message(n+1, streamOf("s", fmt.Sprint(n)), "1"), 0)
					}
					b.StartTimer()
					if !each {
						w.Append(controlEntry(streams+1, streamOf("s", ""), event.Clear), 0)
						continue
					}
					for n := range streams {
						w.Append(controlEntry(streams+n+1, streamOf("s", fmt.Sprint(n)), event.Clear), 0)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(streams), "ns/stream")
			})
		}
	}
}

func stateOf(gens ...event.Generation) eventlog.State {
	return eventlog.State{Origin: "b", Generations: append([]event.Generation{{ID: "b", Start: 1}}, gens...)}
}

func TestWindow_RolledBackLife(t *testing.T) {
	w := newTestWindow(1 << 20)
	w.Extend(stateOf(event.Generation{ID: "first", Start: 1}))
	w.Append(message(1, streamOf("s", "a"), "1"), 0)
	w.Append(message(2, streamOf("s", "a"), "2"), 0)
	for name, after := range map[string]eventlog.State{
		"an older copy":           stateOf(event.Generation{ID: "other", Start: 2}),
		"an older copy, no start": stateOf(),
		"a power cut":             stateOf(event.Generation{ID: "first", Start: 1}, event.Generation{ID: "other", Start: 2}),
	} {
		if w.Extend(after); w.gens[len(w.gens)-1].ID != "first" {
			t.Errorf("%s: the window is of generation %s", name, w.gens[len(w.gens)-1].ID)
		}
	}
	first := event.Generation{ID: "first", Start: 1}
	if w.Extend(stateOf(first, event.Generation{ID: "other", Start: 2})) {
		t.Error("the tail does not have to begin again")
	}
	if !w.Extend(stateOf(first, event.Generation{ID: "second", Start: 3})) || w.gens[len(w.gens)-1].ID != "second" {
		t.Error("the window does not take the generation that follows its own")
	}
}

func sampledMessage(sequence uint64, at Place, flags string) eventlog.Entry {
	e := message(sequence, at, "{}")
	e.Trace = tracing.Context{Parent: fmt.Sprintf("00-%032x-%016x-%s", sequence, sequence, flags)}
	return e
}

func TestWindow_SampledEvents(t *testing.T) {
	w, at := newTestWindow(64<<20), streamOf("s", "t")
	const events = 3 * maxTrails
	for n := uint64(1); n <= events; n++ {
		flags := "00"
		if n%2 == 0 {
			flags = "01"
		}
		w.Append(sampledMessage(n, at, flags), 0)
		if len(w.trails) > maxTrails {
			t.Fatalf("after %d events there are %d trails", n, len(w.trails))
		}
	}
	v := w.Read(cursorAt(w, at, 0), Limits{events, 64 << 20}, nil)
	if len(v.Items) != events {
		t.Fatalf("there are %d events", len(v.Items))
	}
	for _, it := range v.Items[events-maxTrails:] {
		if (it.Trail != nil) != (it.Sequence%2 == 0) {
			t.Fatalf("event %d has the trail %v", it.Sequence, it.Trail)
		}
		if it.Trail != nil && it.Trail.Publish.TraceID().String() != fmt.Sprintf("%032x", it.Sequence) {
			t.Fatalf("event %d has the trace %s", it.Sequence, it.Trail.Publish.TraceID())
		}
	}
	if v.Items[1].Trail != nil {
		t.Error("the oldest trail is still there")
	}
	w.Rollback(testState(0), 0, 1, 0)
	if len(w.trails) > 0 {
		t.Error("a life that is over has trails")
	}
}

// The memory of many streams and sessions of few small events is counted too.
func TestWindow_MemoryOfManyChains(t *testing.T) {
	const budget = 8 << 20
	for name, fill := range map[string]func(add func(eventlog.Entry), n uint64){
		"streams": func(add func(eventlog.Entry), n uint64) {
			add(message(n, Place{fmt.Sprint("session-", n/1000), "f5kq2vznf3hc", fmt.Sprint("stream-", n)}, `{"jsonrpc":"2.0","method":"m"}`))
		},
		"sessions": func(add func(eventlog.Entry), n uint64) {
			name, life := fmt.Sprintf("4f0c9a52-5a3e-4c0e-9a3e-%012d", n), fmt.Sprintf("f5kq2v%d", n)
			add(opening(2*n-1, name, life))
			add(message(2*n, Place{name, life, "call.abcdefgh"}, `{"jsonrpc":"2.0","method":"m"}`))
		},
	} {
		w := newTestWindow(budget)
		before := heap()
		for n := range uint64(100_000) {
			fill(func(e eventlog.Entry) { w.Append(e, 0) }, n+1)
		}
		took, s := heap()-before, w.Stats()
		t.Logf("%s: %d events take %d bytes, %d are counted", name, s.Events, took, s.Bytes)
		if s.Bytes > budget || took > budget*3/2 {
			t.Errorf("%s: the window takes %d bytes, and counts %d of %d", name, took, s.Bytes, budget)
		}
		runtime.KeepAlive(w)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // less than 2⁶³
}
