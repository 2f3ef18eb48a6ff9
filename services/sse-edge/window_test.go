package edge

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

func testState(last uint64) eventlog.State {
	return eventlog.State{Birth: "b", Generations: []event.Generation{{ID: "b", Start: 1}}, First: 1, Last: last}
}

func message(sequence uint64, at place, data string) eventlog.Entry {
	return eventlog.Entry{
		Subject: event.Subject{Session: at.session, Stream: at.stream}, Valid: true,
		Sequence: sequence, Time: time.Unix(0, int64(sequence)), Type: "message", Data: []byte(data), //nolint:gosec // small
	}
}

func marker(sequence uint64, at place, kind event.Kind) eventlog.Entry {
	return eventlog.Entry{Subject: event.Subject{Session: at.session, Stream: at.stream, Kind: kind}, Valid: true, Sequence: sequence}
}

func newTestWindow(budget int) *window {
	w := newWindow(budget, func(string) {})
	w.begin(testState(0), 0, 1)
	w.through(0, 0)
	return w
}

func readerAt(w *window, at place, cursor uint64) *reader {
	return &reader{place: at, chain: w.attach(at, "").chain, cursor: cursor, tags: newTagger(event.Place{})}
}

// The window against the simplest model there is: a slice of everything ever
// appended. Whatever is read must be the model's events of the place behind the
// cursor, without those that were cleared or came after an end.
func TestWindowReadsWhatWasAppended(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(rapid.SampledFrom([]int{1, 2 << 10, 6 << 10, 1 << 20}).Draw(t, "budget"))
		type modelled struct {
			at       place
			sequence uint64
			data     string
		}
		var model []modelled
		closed := map[place]bool{}
		sequence := uint64(0)
		places := []place{{"s", "a"}, {"s", "b"}, {"t", "a"}}
		readers := map[place]*reader{}
		check := func(at place, cursor uint64, r *reader) {
			var want []string
			for _, m := range model {
				if m.at.session == at.session && (at.stream == "" || m.at.stream == at.stream) && m.sequence > cursor {
					want = append(want, m.data)
				}
			}
			var got []string
			for {
				v := w.read(r, limits{events: rapid.IntRange(1, 7).Draw(t, "limit"), bytes: 300}, nil)
				if !v.inside {
					return
				}
				for _, it := range v.items {
					_, data := frameParts(it.frame)
					got = append(got, string(data))
				}
				if len(v.items) == 0 || !v.more {
					r.cursor, r.last = v.through, v.last
					break
				}
				r.cursor, r.last = v.through, v.last
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%v after %d: got %d events %q, want %d %q", at, cursor, len(got), got, len(want), want)
			}
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			at := rapid.SampledFrom(places).Draw(t, "place")
			switch rapid.IntRange(0, 19).Draw(t, "op") {
			case 0:
				sequence++
				if rapid.Bool().Draw(t, "session") {
					at.stream = ""
				}
				w.append(marker(sequence, at, event.Clear), 0, "")
				model = slices.DeleteFunc(model, func(m modelled) bool {
					return m.at.session == at.session && (at.stream == "" || m.at.stream == at.stream)
				})
			case 1:
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					sequence++
					w.append(marker(sequence, at, event.Close), 0, "")
					w.attach(at, "") // a chain that nobody holds may be forgotten, with its end
					closed[at] = true
				}
			case 2, 3:
				cursor := uint64(rapid.IntRange(0, int(sequence)).Draw(t, "cursor")) //nolint:gosec // small
				if rapid.Bool().Draw(t, "flow") {
					at.stream = ""
				}
				r := readerAt(w, at, cursor)
				check(at, cursor, r)
				w.detach(r.chain)
			case 4, 5:
				if readers[at] == nil {
					readers[at] = readerAt(w, at, sequence)
				}
				check(at, readers[at].cursor, readers[at])
			default:
				sequence++
				data := fmt.Sprintf(`{"n":%d,"pad":%q}`, sequence, bytes.Repeat([]byte("x"), rapid.IntRange(0, 60).Draw(t, "size")))
				w.append(message(sequence, at, data), 0, "")
				if !closed[at] {
					model = append(model, modelled{at, sequence, data})
				}
			}
			if got := w.stats(); got.floor > 1 && got.events+len(w.markers) == 0 && sequence == got.end && got.floor != got.end+1 && len(model) > 0 {
				t.Fatalf("the floor is %d at the end %d", got.floor, got.end)
			}
		}
	})
}

func TestWindowStaysWithinItsBudget(t *testing.T) {
	const budget = 64 << 10
	w := newTestWindow(budget)
	for n := uint64(1); n <= 5000; n++ {
		at := place{"s", fmt.Sprint(n % 100)}
		w.append(message(n, at, `{"jsonrpc":"2.0","method":"m"}`), 0, "")
		if got := w.stats(); got.bytes > budget+maxSegment/16 {
			t.Fatalf("after %d events the window takes %d bytes of %d", n, got.bytes, budget)
		}
	}
	got := w.stats()
	if got.floor == 1 || got.events < 100 {
		t.Fatalf("the window holds %d events from %d on", got.events, got.floor)
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.chains) > 101 {
		t.Errorf("%d chains for 100 streams and a flow", len(w.chains))
	}
}

// Chains of streams that nobody reads go with their last event, or the window
// would grow with every stream there ever was.
func TestWindowForgetsStreams(t *testing.T) {
	w := newTestWindow(32 << 10)
	for n := uint64(1); n <= 20000; n++ {
		w.append(message(n, place{fmt.Sprint("s", n), "a"}, `{}`), 0, "")
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if held := int(w.ring.next - w.ring.first); len(w.chains) != 2*held || len(w.byNumber)-len(w.free) != held { //nolint:gosec // small
		t.Errorf("%d chains and %d numbers for %d events", len(w.chains), len(w.byNumber)-len(w.free), held)
	}
}

// itemsAt returns what a client without a cursor gets.
func itemsAt(w *window, at place, incarnation string) []item {
	a := w.attach(at, incarnation)
	defer w.detach(a.chain)
	return w.read(&reader{place: at, chain: a.chain, fresh: true}, limits{events: 100, bytes: 1 << 20}, nil).items
}

// A name may be used again long after its session has ended, and a window that is
// seldom written to still has the events then.
func TestASessionOfTheSameNameGetsNothingOfTheOneBeforeIt(t *testing.T) {
	for _, closed := range []place{{"s", ""}, {"s", "a"}} {
		for _, published := range []bool{false, true} {
			t.Run(fmt.Sprint("closed_", closed, "_published_", published), func(t *testing.T) {
				w := newTestWindow(1 << 20)
				w.append(message(1, place{"s", "a"}, `{"old":1}`), 0, "one")
				w.append(marker(2, closed, event.Close), 0, "one")
				want := 0
				if published {
					w.append(message(3, place{"s", "a"}, `{"new":1}`), 0, "two")
					want = 1
				}
				for _, at := range []place{{"s", "a"}, {"s", ""}} {
					if items := itemsAt(w, at, "two"); len(items) != want {
						t.Errorf("%v: %d events, want %d", at, len(items), want)
					}
				}
			})
		}
	}
}

// The marker comes behind the last event, and must not keep the chain for ever.
func TestAWindowForgetsWhatHasEnded(t *testing.T) {
	w := newTestWindow(16 << 10)
	for n := uint64(1); n < 4000; n += 2 {
		at := place{fmt.Sprint("s", n), "a"}
		w.append(message(n, at, `{}`), 0, "one")
		at.stream = ""
		w.append(marker(n+1, at, event.Close), 0, "one")
	}
	if n := len(w.chains); n > 2*w.stats().events+10 {
		t.Errorf("the window has %d chains for %d events", n, w.stats().events)
	}
}

func TestAWindowOfMarkersAloneIsBoundedToo(t *testing.T) {
	for _, kind := range []event.Kind{event.Close, event.Clear} {
		t.Run(kind.String(), func(t *testing.T) {
			w := newTestWindow(64 << 10)
			for n := uint64(1); n < 4000; n++ {
				w.append(marker(n, place{fmt.Sprint("s", n), "a"}, kind), 0, "one")
			}
			if n := len(w.chains); n > 1000 {
				t.Errorf("the window has %d chains", n)
			}
		})
	}
}

func TestWindowTellsWhereTheTailJumped(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b := place{"s", "a"}, place{"s", "b"}
	w.append(message(1, a, `1`), 0, "")
	w.append(message(5, b, `5`), 3, "")
	r := readerAt(w, a, 1)
	v := w.read(r, limits{10, 1 << 20}, nil)
	if !v.inside || v.proved != 5 || len(v.items) != 0 || v.through != 5 {
		t.Errorf("%+v", v)
	}
}

func TestWaitWakesOnlyItsStream(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b := place{"s", "a"}, place{"s", "b"}
	ra, rb, flow := readerAt(w, a, 0), readerAt(w, b, 0), readerAt(w, place{session: "s"}, 0)
	wait := func(r *reader) <-chan struct{} { return w.wait(r, w.read(r, limits{10, 1 << 20}, nil).version) }
	wa, wb, wf := wait(ra), wait(rb), wait(flow)
	before := w.read(ra, limits{10, 1 << 20}, nil).version
	w.append(message(1, a, `1`), 0, "")
	if !isClosed(wa) || isClosed(wb) || !isClosed(wf) {
		t.Errorf("woken: a %v, b %v, flow %v", isClosed(wa), isClosed(wb), isClosed(wf))
	}
	if !isClosed(w.wait(ra, before)) {
		t.Error("a wait for a version that is over must not block")
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

func TestFramesAreJoinedOnlyWithinASegment(t *testing.T) {
	w := newTestWindow(16 << 10) // segments of 1 KiB
	at := place{"s", "a"}
	for n := uint64(1); n <= 60; n++ {
		w.append(message(n, at, fmt.Sprintf(`{"n":%d}`, n)), 0, "")
	}
	v := w.read(readerAt(w, at, 0), limits{100, 1 << 20}, nil)
	var want []byte
	for i := range v.items {
		want = append(want, v.items[i].frame...)
	}
	var o outbox
	o.frames(v.items)
	if got := bytes.Join(o.buffers, nil); !bytes.Equal(got, want) {
		t.Errorf("the joined frames are not the frames:\n%s\n%s", got, want)
	}
	if len(o.buffers) < 2 || len(o.buffers) > 10 {
		t.Errorf("%d frames make %d buffers", len(v.items), len(o.buffers))
	}
}

func TestFramePartsUndoFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.StringMatching(`[a-z{}:"\n]{0,40}`).Draw(t, "data")
		typ := rapid.SampledFrom([]string{"message", "progress", "data: x"}).Draw(t, "type")
		gotType, got := frameParts(appendFrame(nil, []byte("s_1234567_"), 7, typ, []byte(data)))
		if gotType != typ || string(got) != data {
			t.Fatalf("got %q %q, want %q %q", gotType, got, typ, data)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	w := newTestWindow(256 << 20)
	e := message(0, place{"session", "stream"}, `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"`+string(bytes.Repeat([]byte("x"), 430))+`"}}`)
	b.ReportAllocs()
	for b.Loop() {
		e.Sequence++
		w.append(e, 0, "")
	}
}

func BenchmarkEncode(b *testing.B) {
	data := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + string(bytes.Repeat([]byte("x"), 430)) + `"}}`)
	var frame []byte
	b.ReportAllocs()
	for b.Loop() {
		frame = appendFrame(frame[:0], []byte("stream_1234567_"), 123456, "message", data)
	}
}

func BenchmarkReadAfterCursor(b *testing.B) {
	w := newTestWindow(256 << 20)
	const events, streams = 200_000, 1000
	for n := uint64(1); n <= events; n++ {
		w.append(message(n, place{"s", fmt.Sprint(n % streams)}, `{"jsonrpc":"2.0","method":"m"}`), 0, "")
	}
	r := readerAt(w, place{"s", "7"}, 0)
	items := make([]item, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		r.cursor, r.last = events-50*streams, 0
		if v := w.read(r, limits{1024, 256 << 10}, items); len(v.items) != 50 {
			b.Fatal(len(v.items))
		}
	}
}

// A cursor far behind in a stream that has the window to itself.
func BenchmarkFindFarBehind(b *testing.B) {
	w := newTestWindow(256 << 20)
	const events = 500_000
	for n := uint64(1); n <= events; n++ {
		w.append(message(n, place{"s", "a"}, `{"jsonrpc":"2.0","method":"m"}`), 0, "")
	}
	r := readerAt(w, place{"s", "a"}, 0)
	items := make([]item, 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		r.cursor, r.last = w.floor+uint64(b.N*7919)%1000, 0 //nolint:gosec // positive
		if v := w.read(r, limits{1, 1 << 10}, items); len(v.items) != 1 || v.items[0].sequence != r.cursor+1 {
			b.Fatal(v.items)
		}
	}
}

func stateOf(gens ...event.Generation) eventlog.State {
	return eventlog.State{Birth: "b", Generations: append([]event.Generation{{ID: "b", Start: 1}}, gens...)}
}

func TestAWindowOfALifeThatWasRolledBackTakesNoGenerationOfTheNext(t *testing.T) {
	w := newTestWindow(1 << 20)
	w.extend(stateOf(event.Generation{ID: "first", Start: 1}), false)
	w.append(message(1, place{"s", "a"}, "1"), 0, "")
	w.append(message(2, place{"s", "a"}, "2"), 0, "")
	for name, after := range map[string]eventlog.State{
		"an older copy":           stateOf(event.Generation{ID: "other", Start: 2}),
		"an older copy, no start": stateOf(),
		"a power cut":             stateOf(event.Generation{ID: "first", Start: 1}, event.Generation{ID: "other", Start: 2}),
	} {
		if w.extend(after, false); w.gens[len(w.gens)-1].ID != "first" {
			t.Errorf("%s: the window is of generation %s", name, w.gens[len(w.gens)-1].ID)
		}
	}
	if w.extend(stateOf(event.Generation{ID: "first", Start: 1}, event.Generation{ID: "second", Start: 3}), false); w.gens[len(w.gens)-1].ID != "second" {
		t.Error("the window does not take the generation that follows its own")
	}
	w.append(message(3, place{"s", "a"}, "3"), 0, "")
	if w.extend(stateOf(append(slices.Clone(w.gens[1:]), event.Generation{ID: "late", Start: 3})...), true); w.gens[len(w.gens)-1].ID != "late" {
		t.Error("the window does not take a generation that was begun late, on the tail's own server")
	}
}

// Another edge was faster, and what it showed was lost before this one has seen it.
func TestAReaderAheadOfTheWindowHearsOfARollBackBehindTheWindow(t *testing.T) {
	w := newTestWindow(1 << 20)
	w.append(message(1, place{"s", "a"}, "1"), 0, "")
	ahead, level := readerAt(w, place{"s", "a"}, 5), readerAt(w, place{"s", "a"}, 1)
	fresh := readerAt(w, place{"s", "a"}, 5) // its client has seen nothing that could be lost
	fresh.fresh = true
	w.goOn(stateOf(event.Generation{ID: "next", Start: 3}))
	for r, told := range map[*reader]bool{ahead: true, level: false, fresh: false} {
		v := w.read(r, limits{events: 1, bytes: 1}, nil)
		var s step
		if v.rollbacks > r.rollbacks {
			r.rolledBack(v, &s)
		}
		if len(s.gaps) > 0 != told || told && r.cursor != 2 {
			t.Errorf("a reader is told %v and stands at %d", s.gaps, r.cursor)
		}
	}
}
