package streams

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/session"
)

// world has the settings that a Limit asks others for.
type world struct{ retained time.Duration }

func (w *world) streams(most int) *Limit {
	return NewLimit(func(session.Record) int64 { return int64(most) }, func() time.Duration { return w.retained })
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestLimit_TooMany(t *testing.T) {
	w := world{time.Hour}
	o := w.streams(2)
	s, again, other := session.Record{Session: "s", Life: "1"}, session.Record{Session: "s", Life: "2"}, session.Record{Session: "t"}
	enter := func(rec session.Record, stream string, at time.Duration, refused bool) {
		t.Helper()
		checked := o.Check(rec, stream, noon.Add(at))
		_, entered := o.Enter(rec, stream, noon.Add(at))
		if errors.Is(checked, ErrTooMany) != refused || errors.Is(entered, ErrTooMany) != refused {
			t.Errorf("%s %s after %s: %v, %v", rec.Session, stream, at, checked, entered)
		}
	}
	enter(s, "a", 0, false)
	enter(s, "b", 0, false)
	enter(s, "c", 0, true)
	enter(s, "a", 0, false)
	enter(other, "c", 0, false)

	o.Ended("s", "b")
	o.Ended("s", "x")
	o.Ended("nobody", "")
	enter(s, "c", 0, false)
	enter(s, "d", 0, true)

	enter(s, "c", 30*time.Minute, false)
	enter(s, "d", time.Hour, true)
	enter(s, "d", time.Hour+time.Second, false) // no event of a is retained
	enter(s, "a", time.Hour+time.Second, true)

	enter(again, "e", 2*time.Hour, false) // a session of the same name, later
	enter(again, "f", 2*time.Hour, false)
	enter(again, "g", 2*time.Hour, true)

	o.Ended("s", "")
	enter(again, "e", 2*time.Hour, false)
	enter(again, "f", 2*time.Hour, false)
	count(t, o)

	w.retained = -1
	enter(again, "g", 26*time.Hour, true)
	enter(again, "g", 26*time.Hour+tidyEvery-1, true) // all are not looked at for each refusal
	enter(again, "g", 26*time.Hour+tidyEvery, false)
}

// A stream counts no more when none of the messages that overlapped at its beginning was sent.
func TestLimit_Sent(t *testing.T) {
	w := world{time.Hour}
	o := w.streams(3)
	s := session.Record{Session: "s", Life: "1"}
	enter := func(stream string, first bool) {
		t.Helper()
		if got, err := o.Enter(s, stream, noon); err != nil || got != first {
			t.Errorf("%s is the first: %t, %v", stream, got, err)
		}
	}
	counted := func(want ...string) {
		t.Helper()
		count(t, o)
		if all := o.counted(s); !slices.Equal(slices.Sorted(slices.Values(all)), want) {
			t.Errorf("%v count, want %v", all, want)
		}
	}
	for _, stream := range []string{"a", "b", "c"} {
		enter(stream, true)
		enter(stream, true)
	}
	o.Sent(s, "a", false)
	o.Sent(s, "b", true)
	o.Sent(s, "b", false)
	o.Sent(s, "c", false)
	counted("a", "b", "c")
	o.Sent(s, "a", false)
	o.Sent(s, "c", true)
	counted("b", "c")
	enter("b", false)
	enter("c", false)
	enter("a", true)
	o.Sent(session.Record{Session: "s", Life: "0"}, "a", false)
	o.Sent(s, "x", false)
	counted("a", "b", "c")
}

// It has several requests under way, and needs not all of the answers when its time is over.
func TestLimit_DropEnded(t *testing.T) {
	w := world{time.Hour}
	o := w.streams(maxAsked + 1)
	s := session.Record{Session: "s"}
	for i := range maxAsked + 1 {
		must.Value(o.Enter(s, strconv.Itoa(i), noon))(t)
	}
	var asked atomic.Int64
	all := make(chan struct{})
	if err := o.DropEnded(t.Context(), s, func(context.Context, string) (bool, error) {
		if asked.Add(1) == askedAtOnce {
			close(all)
		}
		<-all
		return true, nil
	}); err != nil || asked.Load() != maxAsked || len(o.of(s).streams) != 1 {
		t.Errorf("%d are asked for, %d count, %v", asked.Load(), len(o.of(s).streams), err)
	}

	for i := range askedAtOnce {
		must.Value(o.Enter(s, strconv.Itoa(i), noon))(t)
	}
	slow := errors.New("slow")
	for name, tt := range map[string]struct {
		answers, over bool
		want          error
	}{"none in time": {false, true, slow}, "one in time": {true, true, nil}, "a failure": {true, false, slow}} {
		asked.Store(0)
		ctx, over := context.WithCancel(t.Context())
		if err := o.DropEnded(ctx, s, func(context.Context, string) (bool, error) {
			if asked.Add(1) == 1 && tt.answers {
				return false, nil
			}
			if tt.over {
				over()
			}
			return false, slow
		}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		over()
	}
}

func TestLimit_Unlimited(t *testing.T) {
	w := world{}
	o := w.streams(-1)
	for i := range 1000 {
		must.Value(o.Enter(session.Record{Session: "s"}, strconv.Itoa(i), noon))(t)
	}
	if o.known.Len() != 0 {
		t.Error("it remembers what it does not need")
	}
}

// The known streams stay bounded, and streams in use stay known.
func TestLimit_Memory(t *testing.T) {
	const sessions, most = 1000, 200
	w := world{retained: time.Hour}
	o := w.streams(most)
	busy := session.Record{Session: "busy"}
	enter := func(rec session.Record, stream int) {
		t.Helper()
		if _, err := o.Enter(rec, strconv.Itoa(stream), noon); err != nil {
			t.Fatalf("stream %d of %s: %v", stream, rec.Session, err)
		}
	}
	for stream := range most {
		for s := range sessions {
			enter(session.Record{Session: strconv.Itoa(s)}, stream)
			enter(busy, stream)
		}
		count(t, o)
	}
	if _, err := o.Enter(busy, "one more", noon); !errors.Is(err, ErrTooMany) {
		t.Errorf("the session in use was forgotten: %v", err)
	}
}

// A session that may have more streams than there is room for does not have others forgotten.
func TestLimit_LargeSession(t *testing.T) {
	w := world{retained: time.Hour}
	const most = maxHeld + 10
	o := w.streams(most)
	small, large := session.Record{Session: "small"}, session.Record{Session: "large"}
	must.Value(o.Enter(small, "a", noon))(t)
	for i := range most {
		must.Value(o.Enter(large, strconv.Itoa(i), noon))(t)
	}
	if _, err := o.Enter(large, "one more", noon); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	if n := len(o.of(small).streams); n != 1 {
		t.Errorf("%d streams of the small session are known", n)
	}
}

func count(t *testing.T, o *Limit) {
	t.Helper()
	streams := 0
	for _, s := range o.known.Values() {
		streams += len(s.streams)
	}
	if streams != o.held || streams+o.known.Len() > maxHeld+200 {
		t.Fatalf("%d streams of %d sessions, %d counted", streams, o.known.Len(), o.held)
	}
}

func TestAllocations_KnownStream(t *testing.T) {
	w := world{retained: time.Hour}
	o := w.streams(100)
	rec := session.Record{Session: "s"}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := o.Enter(rec, "t", noon); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
