package ledger

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// A stream of an MCP call has no birth. When the floor has passed its events, the log has no entry of
// it any more.
func TestLedger_SessionWasUsed(t *testing.T) {
	l := New()
	opened := func(name string, seq uint64, again bool) {
		l.Apply(eventlog.Entry{Sequence: seq, Time: noon, Valid: true, Again: again, Subject: event.Subject{Session: name, Kind: event.Open}}, noon)
	}
	unused := func(name string) bool {
		all := map[string]LoggedSession{}
		l.Logged(all)
		return all[name].Unused()
	}
	opened("empty", 1, false)
	opened("called", 2, false)
	opened("copied", 3, true)
	if !unused("empty") || !unused("called") || unused("copied") {
		t.Error("before the first event")
	}
	l.Apply(eventlog.Entry{Sequence: 4, Time: noon, Valid: true, Size: 1, Subject: event.Subject{Session: "called", Life: "x", Stream: "t", Kind: event.Message}}, noon)
	opened("empty", 5, true)
	opened("called", 6, true)
	for _, floor := range []uint64{2, 5} {
		l.Advance(floor, 0)
		l.expireAll()
		if !unused("empty") || unused("called") {
			t.Errorf("with the floor at %d", floor)
		}
	}
}

func TestLedger_NewestEventAt(t *testing.T) {
	l := New()
	fill(l, 1, 3)
	last := l.Accounts[unopened("s")].newestAt
	l.Reach(3, noon)
	if got := l.NewestEventAt(unopened("unknown")); !got.Equal(noon) {
		t.Errorf("of a stranger: %s", got)
	}
	if got := l.NewestEventAt(unopened("s")); got.Before(noon) || last == 0 {
		t.Errorf("%s, %d", got, last)
	}
}

// The ledger forgets a life with its last entry but the opening. It still knows when the life's last event was
// stored, which does not concern other sessions.
func TestLedger_NewestEventAtOfExpired(t *testing.T) {
	l := New()
	l.Reach(0, noon)
	store := func(e eventlog.Entry) {
		e.Valid, e.Sequence, e.Time = true, l.Through+1, noon.Add(time.Duration(l.Through)*time.Hour)
		l.Apply(e, noon)
	}
	store(eventlog.Entry{Subject: event.Subject{Session: "busy", Life: "l"}}) // 1
	store(eventlog.Entry{Subject: event.Subject{Session: "s", Life: "l"}})    // 2
	for _, name := range []string{"busy", "s", "quiet"} {
		store(eventlog.Entry{Subject: event.Subject{Session: name, Kind: event.Open}, Again: true}) // up to 5
	}
	l.Advance(3, 5)
	l.expireAll()
	for name, want := range map[string]time.Time{"busy": noon, "s": noon.Add(time.Hour), "quiet": noon} {
		if got := l.NewestEventAt(event.LifeKey(name, "l")); !got.Equal(want) {
			t.Errorf("the last event of %s was stored at %s, want %s", name, got, want)
		}
	}
}

func TestNewest_ManyStreams(t *testing.T) { // not in parallel: it counts the allocations of the process
	l := New()
	const streams, events, limit = 100, 30, 7
	fill(l, streams, events)
	newest := l.NewestOf(unopened("s"), limit)
	if len(newest) != limit {
		t.Fatalf("%d of %d", len(newest), limit)
	}
	for i, p := range newest {
		if want := uint64(streams*events - i); p.Sequence != want || p.Stream != fmt.Sprint((want-1)%streams) {
			t.Errorf("number %d is %+v", i, p)
		}
	}
	if all := l.NewestOf(unopened("s"), streams*events+1); len(all) != streams*events {
		t.Errorf("there are %d", len(all))
	}
	took := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			l.NewestOf(unopened("s"), limit)
		}
	})
	if size := int(unsafe.Sizeof(PublishedInfo{})); took.AllocedBytesPerOp() > int64(8*limit*size) {
		t.Errorf("%d B for %d of %d B", took.AllocedBytesPerOp(), limit, size)
	}
}

func TestAlarm_RingsOnce(t *testing.T) {
	l := New()
	l.Alarm = Limits{MaxPerStream: -1, MaxEvents: 100, MaxBytes: -1}.Alarm()
	publish := func(session string, n int) {
		for range n {
			l.Apply(eventlog.Entry{Subject: event.Subject{Session: session, Stream: "x"}, Valid: true, Sequence: l.Through + 1, Time: noon}, noon)
		}
	}
	publish("a", 111)
	publish("b", 200)
	if l.Alarmed() {
		t.Error("it rings before the ledger is complete")
	}
	l.Reach(l.Through, noon)
	for range 2 {
		if got := fmt.Sprint(l.TakeAlarms()); got != "[b ]" || l.Alarmed() {
			t.Errorf("it rang for %s", got)
		}
		publish("b", 2)
	}
	l.TakeAlarms()
	for range 2 { // it could not be trimmed
		l.RingAgain([]string{unopened("b"), unopened("gone")})
	}
	if publish("b", 2); !l.Alarmed() || len(l.Over) != 1 {
		t.Errorf("it rings for %v", l.Over)
	}
	l.Drop()
	if l.Alarmed() || l.Alarm.events != 112 {
		t.Errorf("the ledger that was dropped is left with %+v and %v", l.Alarm, l.Over)
	}
}

func TestAlarm_IsAnEighthAboveTheLimit(t *testing.T) {
	for limit, want := range map[int64]int64{-1: 0, 1: 2, 7: 8, 8: 9, 16: 18, 10_000: 11_250} {
		if got := (Limits{limit, limit, limit, -1, 0}).Alarm(); got != (Alarm{want, want, want}) {
			t.Errorf("with a limit of %d it rings at %+v, want %d", limit, got, want)
		}
	}
	m := Alarm{perStream: 3, events: 5, bytes: 50}
	for name, test := range map[string]struct {
		a    Account
		s    stream
		want bool
	}{
		"nothing":  {Account{Events: 4, bytes: 49}, stream{events: sized(1, 2)}, false},
		"a stream": {Account{Events: 3}, stream{events: sized(1, 2, 3)}, true},
		"events":   {Account{Events: 5}, stream{}, true},
		"bytes":    {Account{bytes: 50}, stream{}, true},
	} {
		if got := m.rings(&test.a, &test.s); got != test.want {
			t.Errorf("%s: it rings: %t", name, got)
		}
	}
}

func TestDetail_EmptyStreams(t *testing.T) {
	streams := append(make([]StreamInfo, maxEmpty+2), StreamInfo{Stream: "z", Events: 1})
	if d := New().Detail(session.Record{}, streams, nil, Limits{}); len(d.Streams) != maxEmpty+1 || d.Streams[maxEmpty].Stream != "z" || d.Omitted != 2 {
		t.Errorf("%d streams are listed, and %d are not", len(d.Streams), d.Omitted)
	}
}
