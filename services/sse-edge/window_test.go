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
		Subject: event.Subject{Session: at.session, Life: at.life, Stream: at.stream}, Valid: true,
		Sequence: sequence, Time: time.Unix(0, int64(sequence)), Type: "message", Data: []byte(data), //nolint:gosec // small
	}
}

func marker(sequence uint64, at place, kind event.Kind) eventlog.Entry {
	return eventlog.Entry{Subject: event.Subject{Session: at.session, Life: at.life, Stream: at.stream, Kind: kind}, Valid: true, Sequence: sequence}
}

func trimOf(sequence uint64, at place, removed ...uint64) eventlog.Entry {
	e := marker(sequence, at, event.Trim)
	e.Trim = &eventlog.Trim{Session: at.session, Life: at.life, Stream: at.stream, Reason: eventlog.Trimmed, Removed: removed}
	if n := len(removed); n > 0 {
		e.Trim.UpTo = removed[n-1]
	}
	return e
}

func newTestWindow(budget int) *window {
	w := newWindow(budget, func(string) {})
	w.begin(testState(0), 0, 1)
	w.through(0, 0)
	return w
}

func readerAt(w *window, at place, cursor uint64) *reader {
	return &reader{place: at, chain: w.attach(at, false, 0).chain, cursor: cursor, tags: newTagger(event.Place{})}
}

func opening(sequence uint64, session, life string) eventlog.Entry {
	return eventlog.Entry{
		Subject: event.Subject{Session: session, Kind: event.Open}, Valid: true,
		Sequence: sequence, Data: fmt.Appendf(nil, `{"life":%q}`, life),
	}
}

// The window against the simplest model there is: a slice of everything ever appended.
// What is read must be the model's events of the place behind the cursor, without those
// that were cleared; a place is closed when its end, or the opening of another life, is
// the last that the model has of it.
func TestWindow_ReadsWhatWasAppended(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(rapid.SampledFrom([]int{1, 2 << 10, 6 << 10, 1 << 20}).Draw(t, "budget"))
		type modelled struct {
			at       place
			sequence uint64
			data     string
		}
		var model []modelled
		closed := map[place]uint64{}
		opened := map[string]string{} // the life of a session that was opened, "several" when there are more
		sequence := uint64(0)
		var places []place
		for _, session := range []string{"s", "t"} {
			for _, life := range []string{"one", "two"} {
				for _, stream := range []string{"a", "b"} {
					places = append(places, place{session, life, stream})
				}
			}
		}
		within := func(at, in place) bool {
			return at.session == in.session && at.life == in.life && (in.stream == "" || at.stream == in.stream)
		}
		readers := map[place]*reader{}
		check := func(at place, cursor uint64, r *reader) {
			var want []string
			for _, m := range model {
				if within(m.at, at) && m.sequence > cursor {
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
				r.cursor, r.last = v.through, v.last
				if len(v.items) == 0 || !v.more {
					if v.closed != 0 && closed[at] == 0 && closed[place{at.session, at.life, ""}] == 0 && opened[at.session] == at.life {
						t.Fatalf("%v is closed at %d", at, v.closed)
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
					at.stream = ""
				}
				w.append(marker(sequence, at, event.Clear), 0)
				model = slices.DeleteFunc(model, func(m modelled) bool { return within(m.at, at) })
			case 1:
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					sequence++
					w.append(marker(sequence, at, event.End), 0)
					closed[at] = sequence
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
			case 7: // what the window holds is there, also when it is deleted in the log
				sequence++
				if rapid.Bool().Draw(t, "life") {
					at.stream = ""
				}
				var removed []uint64
				for n := uint64(1); n < sequence; n++ {
					removed = append(removed, n)
				}
				w.append(trimOf(sequence, at, removed...), 0)
				r := readerAt(w, at, 0)
				check(at, 0, r)
				w.detach(r.chain)
			case 6:
				sequence++
				w.append(opening(sequence, at.session, at.life), 0)
				if of := opened[at.session]; of == "" || of == at.life {
					opened[at.session] = at.life
				} else {
					opened[at.session] = "several"
				}
			default:
				sequence++
				data := fmt.Sprintf(`{"n":%d,"pad":%q}`, sequence, bytes.Repeat([]byte("x"), rapid.IntRange(0, 60).Draw(t, "size")))
				w.append(message(sequence, at, data), 0)
				model = append(model, modelled{at, sequence, data})
				delete(closed, at)
				delete(closed, place{at.session, at.life, ""})
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
		at := placeOf("s", fmt.Sprint(n%100))
		w.append(message(n, at, `{"jsonrpc":"2.0","method":"m"}`), 0)
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
		w.append(message(n, placeOf(fmt.Sprint("s", n), "a"), `{}`), 0)
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if held := int(w.ring.next - w.ring.first); len(w.chains) != 2*held || len(w.byNumber)-len(w.free) != held { //nolint:gosec // small
		t.Errorf("%d chains and %d numbers for %d events", len(w.chains), len(w.byNumber)-len(w.free), held)
	}
}

// A name may be used again while a window that is seldom written to still has the events of
// the life before: a reader gets those of its own life, and its end with the opening of the
// next one.
func TestWindow_LivesOfANameAreApart(t *testing.T) {
	w := newTestWindow(1 << 20)
	old := place{"s", "one", "a"}
	w.append(opening(1, "s", "one"), 0)
	w.append(message(2, old, `{"old":1}`), 0)
	reading := readerAt(w, old, 0)
	w.append(opening(3, "s", "two"), 0)
	w.append(message(4, place{"s", "two", "a"}, `{"new":1}`), 0)
	all := limits{events: 100, bytes: 1 << 20}
	if v := w.read(reading, all, nil); len(v.items) != 1 || v.items[0].sequence != 2 || v.closed != 3 {
		t.Errorf("the reader of the life before has %d events and its end at %d", len(v.items), v.closed)
	}
	for _, at := range []place{{"s", "", "a"}, {"s", "", ""}} { // the life is to be found
		r := readerAt(w, at, 0)
		if v := w.read(r, all, nil); len(v.items) != 1 || v.items[0].sequence != 4 || v.closed != 0 || v.life != "two" {
			t.Errorf("%v: %d events of life %q, end at %d", at, len(v.items), v.life, v.closed)
		}
	}
	w.append(message(5, old, `{"late":1}`), 0) // only damage does that; nothing is hidden
	if v := w.read(reading, all, nil); len(v.items) != 2 || v.closed != 0 {
		t.Errorf("after an event behind its end the life before has %d events, end at %d", len(v.items), v.closed)
	}
}

// A window that begins behind an opening learns the life from the first event, or from who
// looked in the log; an older opening than that says nothing.
func TestWindow_WaitingChainsTakeTheFirstLifeThatIsKnown(t *testing.T) {
	for name, begin := range map[string]func(*window){
		"event":   func(w *window) { w.append(message(7, place{"s", "one", "b"}, `{}`), 0) },
		"opening": func(w *window) { w.append(opening(7, "s", "one"), 0) },
		"look":    func(w *window) { w.attach(place{"s", "one", ""}, true, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWindow(1 << 20)
			stream, flow := readerAt(w, placeOf("s", "a"), 0), readerAt(w, placeOf("s", ""), 0)
			begin(w)
			w.append(message(8, place{"s", "one", "a"}, `{}`), 0)
			for _, r := range []*reader{stream, flow} {
				v := w.read(r, limits{events: 100, bytes: 1 << 20}, nil)
				if len(v.items) == 0 || v.life != "one" {
					t.Errorf("%d events, life %q", len(v.items), v.life)
				}
				w.detach(r.chain)
			}
		})
	}
}

// A roll-back takes what the window knew of lives and ends: the log may have lost it.
func TestWindow_RollBackForgetsLivesAndEnds(t *testing.T) {
	w := newTestWindow(1 << 20)
	at := place{"s", "one", "a"}
	w.append(message(1, at, `{}`), 0)
	r := readerAt(w, at, 1)
	w.append(marker(2, at, event.End), 0)
	w.append(opening(3, "s", "two"), 0)
	w.rollback(testState(1), 1, 2, 1)
	w.through(1, 0)
	r.rollbacks = 1
	if life, known, _ := w.lifeOf("s"); known {
		t.Errorf("the life is %q", life)
	}
	w.append(message(2, at, `{}`), 0)
	if v := w.read(r, limits{events: 100, bytes: 1 << 20}, nil); len(v.items) != 1 || v.closed != 0 {
		t.Errorf("%d events, closed at %d", len(v.items), v.closed)
	}
}

// The marker comes behind the last event, and must not keep the chain for ever.
func TestAWindowForgetsWhatHasEnded(t *testing.T) {
	w := newTestWindow(16 << 10)
	for n := uint64(1); n < 4000; n += 2 {
		at := placeOf(fmt.Sprint("s", n), "a")
		w.append(message(n, at, `{}`), 0)
		at.stream = ""
		w.append(marker(n+1, at, event.End), 0)
	}
	if n := len(w.chains); n > 2*w.stats().events+10 {
		t.Errorf("the window has %d chains for %d events", n, w.stats().events)
	}
}

func TestAWindowOfMarkersAloneIsBoundedToo(t *testing.T) {
	for _, kind := range []event.Kind{event.End, event.Clear, event.Trim} {
		t.Run(kind.String(), func(t *testing.T) {
			w := newTestWindow(64 << 10)
			for n := uint64(1); n < 4000; n++ {
				e := trimOf(n, placeOf(fmt.Sprint("s", n), "a"))
				e.Subject.Kind = kind
				w.append(e, 0)
			}
			if n := len(w.chains); n > 1000 {
				t.Errorf("the window has %d chains", n)
			}
		})
	}
}

func TestWindowTellsWhereTheTailJumped(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b := placeOf("s", "a"), placeOf("s", "b")
	w.append(message(1, a, `1`), 0)
	w.append(message(5, b, `5`), 3)
	r := readerAt(w, a, 1)
	v := w.read(r, limits{10, 1 << 20}, nil)
	if !v.inside || v.proved != 5 || len(v.items) != 0 || v.through != 5 {
		t.Errorf("%+v", v)
	}
}

// A trim tells what the tail missed of a stream: what the window holds is not missing, nor
// what is of other streams.
func TestWindow_TrimOfWhatTheTailMissed(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b, all := placeOf("s", "a"), placeOf("s", "b"), placeOf("s", "")
	w.append(message(1, a, `1`), 0)
	w.append(message(2, b, `2`), 0)
	w.append(message(6, a, `6`), 3)
	want := func(at place, cursor uint64, want ...loss) {
		t.Helper()
		r := readerAt(w, at, cursor)
		defer w.detach(r.chain)
		if v := w.read(r, limits{10, 1 << 20}, nil); !slices.Equal(v.losses, want) {
			t.Errorf("%v behind %d: %v, want %v", at, cursor, v.losses, want)
		}
	}
	reader := readerAt(w, a, 1)
	woken := w.wait(reader, w.read(reader, limits{10, 1 << 20}, nil).version)
	w.append(trimOf(7, a, 1, 6), 0)
	if isClosed(woken) {
		t.Error("a trim of what the window holds wakes readers")
	}
	w.append(trimOf(8, a, 1, 3, 6), 0)
	if !isClosed(woken) {
		t.Error("nobody is told what is missing")
	}
	lost := loss{"a", 3, ReasonTrimmed, true}
	want(a, 2, lost)
	want(a, 3)
	want(b, 2)
	want(all, 2, lost)
	w.append(trimOf(9, all, 2, 4, 5), 0)
	want(b, 4, loss{"b", 5, ReasonTrimmed, false})
	want(b, 5)
	want(all, 4, loss{"", 5, ReasonTrimmed, false})
	w.append(trimOf(10, b, 2, 4), 0)
	want(b, 3, loss{"b", 4, ReasonTrimmed, true}, loss{"b", 5, ReasonTrimmed, false})
	want(b, 4, loss{"b", 5, ReasonTrimmed, false})
}

// Whatever a janitor deletes while a tail goes on, a reader is told all that the tail missed,
// and nothing else, once the tail has come to the end.
func TestWindow_TellsAllThatTheTailMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(1 << 20)
		streams := []string{"a", "b"}
		log := []eventlog.Entry{{}} // by sequence
		deleted, received := map[uint64]bool{}, map[uint64]bool{}
		var announced []uint64
		ofLife := 0 // up to where a trim of the life was announced
		tail := func() (more bool) {
			end := w.stats().end
			for n := end + 1; n < uint64(len(log)); n++ {
				if !deleted[n] {
					w.append(log[n], n-end-1)
					received[n] = true
					return true
				}
			}
			return false
		}
		isEvent := func(n uint64) bool { return log[n].Subject.Kind == event.Message }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at := placeOf("s", rapid.SampledFrom(streams).Draw(t, "stream"))
			next := uint64(len(log))
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0, 1:
				upTo := rapid.IntRange(ofLife, len(log)-1).Draw(t, "up to")
				if rapid.IntRange(0, 3).Draw(t, "life") == 0 {
					at.stream, ofLife = "", upTo
				}
				again := rapid.Bool().Draw(t, "list again")
				e := trimOf(next, at)
				for n := uint64(1); n <= uint64(upTo); n++ { //nolint:gosec // small
					if isEvent(n) && (at.stream == "" || log[n].Subject.Stream == at.stream) {
						if e.Trim.UpTo = n; !slices.Contains(announced, n) || again && !deleted[n] {
							e.Trim.Removed = append(e.Trim.Removed, n)
						}
					}
				}
				log = append(log, e)
				announced = append(announced, e.Trim.Removed...)
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
			r := readerAt(w, placeOf("s", stream), cursor)
			v := w.read(r, limits{events: 100, bytes: 1 << 20}, nil)
			told, certain := uint64(0), false
			for _, l := range v.losses {
				told, certain = max(told, l.upTo), certain || l.certain
			}
			if told < missed || told > 0 && missed == 0 && (certain || ofLife == 0) {
				t.Fatalf("%q behind %d: missed %d, told %v", stream, cursor, missed, v.losses)
			}
			w.detach(r.chain)
		}
	})
}

// Control entries that the janitor writes again are no news.
func TestWindow_Copies(t *testing.T) {
	w := newTestWindow(1 << 20)
	old, at := place{"s", "zero", "a"}, place{"s", "one", "a"}
	w.append(message(1, old, `{}`), 0)
	w.append(opening(2, "s", "one"), 0)
	w.append(message(3, at, `{}`), 0)
	w.append(message(4, place{"s", "one", "b"}, `{}`), 0)
	w.append(marker(5, place{"s", "one", "b"}, event.End), 0)
	w.append(message(6, old, `{}`), 0) // only damage does that, and it cancels the end
	closed := func(at place) uint64 {
		r := readerAt(w, at, 0)
		defer w.detach(r.chain)
		return w.read(r, limits{10, 1 << 20}, nil).closed
	}
	connected := readerAt(w, at, 3)
	version := w.read(connected, limits{10, 1 << 20}, nil).version
	w.append(opening(7, "s", "one"), 0)
	w.append(marker(8, place{"s", "one", "b"}, event.End), 0)
	if isClosed(w.wait(connected, version)) || closed(at) != 0 || closed(old) != 0 || closed(place{"s", "one", "b"}) != 5 {
		t.Errorf("ends: %d, %d, %d", closed(at), closed(old), closed(place{"s", "one", "b"}))
	}
	if life, known, _ := w.lifeOf("s"); life != "one" || !known {
		t.Errorf("the life is %q", life)
	}
}

func TestWaitWakesOnlyItsStream(t *testing.T) {
	w := newTestWindow(1 << 20)
	a, b := placeOf("s", "a"), placeOf("s", "b")
	ra, rb, flow := readerAt(w, a, 0), readerAt(w, b, 0), readerAt(w, place{session: "s"}, 0)
	wait := func(r *reader) <-chan struct{} { return w.wait(r, w.read(r, limits{10, 1 << 20}, nil).version) }
	wa, wb, wf := wait(ra), wait(rb), wait(flow)
	before := w.read(ra, limits{10, 1 << 20}, nil).version
	w.append(message(1, a, `1`), 0)
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
	at := placeOf("s", "a")
	for n := uint64(1); n <= 60; n++ {
		w.append(message(n, at, fmt.Sprintf(`{"n":%d}`, n)), 0)
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
	e := message(0, placeOf("session", "stream"), `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"`+string(bytes.Repeat([]byte("x"), 430))+`"}}`)
	b.ReportAllocs()
	for b.Loop() {
		e.Sequence++
		w.append(e, 0)
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
		w.append(message(n, placeOf("s", fmt.Sprint(n%streams)), `{"jsonrpc":"2.0","method":"m"}`), 0)
	}
	r := readerAt(w, placeOf("s", "7"), 0)
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
		w.append(message(n, placeOf("s", "a"), `{"jsonrpc":"2.0","method":"m"}`), 0)
	}
	r := readerAt(w, placeOf("s", "a"), 0)
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
	w.append(message(1, placeOf("s", "a"), "1"), 0)
	w.append(message(2, placeOf("s", "a"), "2"), 0)
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
	w.append(message(3, placeOf("s", "a"), "3"), 0)
	if w.extend(stateOf(append(slices.Clone(w.gens[1:]), event.Generation{ID: "late", Start: 3})...), true); w.gens[len(w.gens)-1].ID != "late" {
		t.Error("the window does not take a generation that was begun late, on the tail's own server")
	}
}

// Another edge was faster, and what it showed was lost before this one has seen it.
func TestAReaderAheadOfTheWindowHearsOfARollBackBehindTheWindow(t *testing.T) {
	w := newTestWindow(1 << 20)
	w.append(message(1, placeOf("s", "a"), "1"), 0)
	ahead, level := readerAt(w, placeOf("s", "a"), 5), readerAt(w, placeOf("s", "a"), 1)
	fresh := readerAt(w, placeOf("s", "a"), 5) // its client has seen nothing that could be lost
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
