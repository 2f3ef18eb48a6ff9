package mcpstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestAfter_EveryReplicaAndAfterRestarts(t *testing.T) {
	w := newWorld(t)
	a, end := w.process(Config{})
	mustOpen(t, a, "s", "")
	mustOpen(t, a, "s", "req")
	mustAppend(t, a, "s", "", "A0", "A1")
	mustAppend(t, a, "s", "req", "", "R1", "R2")
	b := w.store(Config{})
	for _, s := range []*Store{a, b} {
		wantAfter(t, s, "s", "", -1, "A0", "A1")
		wantAfter(t, s, "s", "", 1)
		wantAfter(t, s, "s", "req", 0, "R1", "R2")
		wantAfter(t, s, "s", "req", -1, "", "R1", "R2")
	}
	end()
	w.restart()
	mustOpen(t, b, "s", "") // takes over
	mustAppend(t, b, "s", "", "B2")
	wantAfter(t, b, "s", "", 0, "A1", "B2")
	c := w.store(Config{})
	mustAppend(t, c, "s", "", "C3") // without Open, as the contract does not forbid
	for _, s := range []*Store{b, c} {
		wantAfter(t, s, "s", "", -1, "A0", "A1", "B2", "C3")
		wantAfter(t, s, "s", "", 3)
	}
}

func TestAfter_Trimmed(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "req")
	for n := range 6 {
		mustAppend(t, a, "s", "req", message(n))
	}
	w.trim("s", "req", 3)
	for _, s := range []*Store{a, b} {
		for index := -1; index < 2; index++ {
			wantLost(t, s, "s", "req", index, ErrLost)
		}
		wantAfter(t, s, "s", "req", 2, message(3), message(4), message(5))
		wantAfter(t, s, "s", "req", 5)
		wantLost(t, s, "s", "req", 6, ErrAhead)
	}
	w.trim("s", "req", 3)
	wantLost(t, a, "s", "req", 4, ErrLost)
	wantAfter(t, a, "s", "req", 5)
	wantLost(t, b, "s", "req", 5, ErrLost) // it cannot know which was the last
	wantLost(t, b, "s", "req", -1, ErrLost)
}

func TestAppend_EverythingExpired(t *testing.T) {
	w := newWorld(t)
	a := w.store(Config{})
	mustOpen(t, a, "s", "", "0", "1", "2")
	w.trim("s", standalone, 3)
	for name, remove := range map[string]func(){
		"trimmed": func() { w.trim("s", standalone, 1) },
		"expired": func() { w.expire("s") },
	} {
		b := w.store(Config{})
		mustOpen(t, b, "s", "", "new "+name)
		for index := -1; index < 5; index++ {
			wantLost(t, b, "s", "", index, ErrLost)
			wantLost(t, w.store(Config{}), "s", "", index, ErrLost)
		}
		remove()
	}
}

func TestAfter_UnknownSession(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{})
	if got, err := after(t, s, "unknown", "req", -1); !errors.Is(err, ErrUnknownSession) {
		t.Errorf("%q, %v", got, err)
	}
	mustOpen(t, s, "s", "")
	wantAfter(t, s, "s", "", -1)
	wantAfter(t, s, "s", "other", -1)
	wantLost(t, s, "s", "other", 0, ErrAhead)
}

func TestOpen_InvalidNames(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{})
	for _, name := range [][2]string{{"a b", "x"}, {"*", "x"}, {"s", "ä"}, {"s", standalone}, {"s", "."}} {
		errs := []error{s.Open(t.Context(), name[0], name[1]), s.Append(t.Context(), name[0], name[1], nil)}
		_, err := after(t, s, name[0], name[1], 0)
		for _, err := range append(errs, err) {
			if !errors.Is(err, ErrInvalidName) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	// A stateless server has no session, and nothing to resume.
	must.NoError(t, errors.Join(s.Open(t.Context(), "", ""), s.Append(t.Context(), "", "", nil), s.SessionClosed(t.Context(), "")))
}

func TestSessionClosed(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "req", "0")
	wantAfter(t, b, "s", "req", -1, "0")
	mustOpen(t, b, "s", "own", "0")
	for range 2 {
		must.NoError(t, a.SessionClosed(t.Context(), "s"))
	}
	// The log refuses an event, even when the other replica does not know of the end yet.
	if err := b.Append(t.Context(), "s", "own", []byte("1")); !errors.Is(err, session.ErrClosed) || len(w.entries("s", "own")) != 1 {
		t.Errorf("an event is stored after the end, %v", err)
	}
	if err := a.SessionClosed(t.Context(), "never opened"); !errors.Is(err, ErrInvalidName) {
		t.Error(err)
	}
	must.NoError(t, a.SessionClosed(t.Context(), "never-opened"))
	waittest.Until(t, "the other replica has heard of it", func() bool {
		rec, ok := b.backend.Sessions.Session("s")
		return ok && rec.State != session.Open
	})
	for _, s := range []*Store{a, b} {
		_, err := after(t, s, "s", "req", -1)
		for _, err := range []error{err, s.Open(t.Context(), "s", "new"), s.Append(t.Context(), "s", "req", nil)} {
			if !errors.Is(err, session.ErrClosed) {
				t.Error(err)
			}
		}
	}
}

func TestAfter_Cleared(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{})
	for _, cleared := range []string{"req", ""} {
		name := "s" + cleared
		mustOpen(t, s, name, "req", "0", "1")
		w.clear(name, cleared)
		wantLost(t, s, name, "req", 0, ErrLost)
		wantAfter(t, s, name, "req", 1)
		mustAppend(t, s, name, "req", "2")
		wantAfter(t, w.store(Config{}), name, "req", 1, "2")
		wantLost(t, w.store(Config{}), name, "req", 0, ErrLost)
	}
}

func TestAfter_PartitionIsRecreated(t *testing.T) {
	w := newWorld(t)
	a := w.store(Config{})
	mustOpen(t, a, "s", "req", "0", "1", "2")
	js := natstest.JetStream(t, w.creator.Conn)
	p := w.creator.Log.Partition("s")
	before, _ := w.creator.Log.State(p)
	must.NoError(t, js.DeleteStream(t.Context(), fmt.Sprintf("MCP_%d", p)))
	waittest.Until(t, "the partition is there again", func() bool { // its creator watches it
		now, err := w.creator.Log.Look(t.Context(), p)
		return err == nil && now.Origin != before.Origin
	})
	wantLost(t, a, "s", "req", 1, ErrLost)
	wantAfter(t, a, "s", "req", 2)
	wantLost(t, w.store(Config{}), "s", "req", 2, ErrAhead)
	mustAppend(t, a, "s", "req", "3")
	wantLost(t, w.store(Config{}), "s", "req", 1, ErrLost)
	wantAfter(t, w.store(Config{}), "s", "req", 2, "3")
}

// fail has an Append fail, soon, while no server runs. Only calls have the time-out.
func (s *Store) fail(t *testing.T, session, stream, data string) {
	t.Helper()
	before := s.cfg.Timeout
	s.cfg.Timeout = 200 * time.Millisecond
	defer func() { s.cfg.Timeout = before }()
	if err := s.Append(t.Context(), session, stream, []byte(data)); err == nil {
		t.Fatal("there is no server")
	}
}

func TestAppend_FailureLeavesItsIndexEmpty(t *testing.T) {
	w := newWorld(t)
	a := w.store(Config{})
	mustOpen(t, a, "s", "req", "0")
	w.server.Stop()
	a.fail(t, "s", "req", "1")
	began := time.Now()
	if err := a.Append(t.Context(), "s", "req", []byte("2")); !errors.Is(err, errLostBefore) {
		t.Fatalf("%v, after %s", err, time.Since(began))
	}
	w.start()
	// No event follows: another process learns it from the mender's note.
	b := w.store(Config{})
	waittest.Until(t, "another process knows of it", func() bool {
		_, err := after(t, b, "s", "req", 0)
		return errors.Is(err, ErrLost)
	})
	wantLost(t, a, "s", "req", 0, ErrLost)
	for _, s := range []*Store{a, b} {
		wantLost(t, s, "s", "req", 1, ErrLost)
		wantAfter(t, s, "s", "req", 2) // it was delivered all the same
	}
	waittest.Until(t, "the next one is stored", func() bool { return a.Conn() })
	mustAppend(t, a, "s", "req", "3")
	for _, s := range []*Store{a, b} {
		wantLost(t, s, "s", "req", 1, ErrLost)
		wantAfter(t, s, "s", "req", 2, "3")
	}
}

// Conn reports whether the store has a connection.
func (s *Store) Conn() bool { return s.backend.Connected() == nil }

func TestAppend_WaitsForNATS(t *testing.T) {
	w := newWorld(t)
	a := w.store(Config{Timeout: time.Minute})
	mustOpen(t, a, "s", "req")
	w.server.Stop()
	done := make(chan error, 1)
	go func() { done <- a.Append(t.Context(), "s", "req", []byte("0")) }()
	w.start()
	must.NoError(t, <-done)
	wantAfter(t, w.store(Config{}), "s", "req", -1, "0")
}

func TestAppend_AnswerIsLost(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "req")
	st := a.streams.get(place{"s", "req"})
	lostAnswer := func(n int, data string) { // an attempt whose acknowledgement is lost
		i := index{n: n, writer: st.writer}
		must.NoError(t, a.attempt(t.Context(), st, i, []byte(data)))
	}
	// The next attempt of the same Append finds its event in the log.
	lostAnswer(0, "0")
	mustAppend(t, a, "s", "req", "0")
	// No attempt was answered: the Append has failed, and the mender finds its event in the log.
	lostAnswer(1, "1")
	st.add(1)
	st.lost = true
	wantAfter(t, a, "s", "req", 0, "1")
	a.breaks(st)
	waittest.Until(t, "the mender has looked", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.broken) == 0
	})
	mustAppend(t, a, "s", "req", "2")
	for _, s := range []*Store{a, b} {
		wantAfter(t, s, "s", "req", -1, "0", "1", "2")
		wantAfter(t, s, "s", "req", 1, "2")
	}
	if got := w.entries("s", "req"); len(got) != 3 {
		t.Errorf("%d entries", len(got))
	}
}

func TestAppend_TooLarge(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "req", "0")
	huge := bytes.Repeat([]byte("x"), w.creator.Log.Settings().MaxMessageBytes+1)
	if err := a.Append(t.Context(), "s", "req", huge); !errors.Is(err, eventlog.ErrTooLarge) {
		t.Fatal(err)
	}
	wantLost(t, a, "s", "req", 0, ErrLost)
	mustAppend(t, a, "s", "req", "2")
	for _, s := range []*Store{a, b} {
		wantLost(t, s, "s", "req", 0, ErrLost)
		wantAfter(t, s, "s", "req", 1, "2")
	}
}

func TestAppend_BeforeTheStreamIsRead(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "", "0")
	w.server.Stop()
	b.fail(t, "s", "", "1")
	w.start()
	waittest.Until(t, "it is known where the stream ended", func() bool {
		_, err := after(t, b, "s", "", 0)
		return errors.Is(err, ErrLost)
	})
	wantAfter(t, b, "s", "", 1)
	mustAppend(t, b, "s", "", "2")
	wantAfter(t, w.store(Config{}), "s", "", 1, "2")
}

func TestAppend_TwoWriters(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "", "A0")
	mustOpen(t, b, "s", "", "B1")
	mustAppend(t, a, "s", "", "A1") // its client has this one as 1
	for _, s := range []*Store{a, b, w.store(Config{})} {
		for index := -1; index < 3; index++ {
			wantLost(t, s, "s", "", index, ErrForked)
		}
	}
}

func TestAppend_EventsOfOtherPublishers(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{})
	mustOpen(t, s, "s", "", "0")
	for _, index := range []string{"", "nonsense", "1.", "-1.w", "01.w"} {
		must.Value(w.creator.Log.Publish(t.Context(), eventlog.Event{Session: "s", Life: w.life("s"), Stream: standalone, Data: []byte(message(7)), Index: index}))(t)
	}
	mustAppend(t, s, "s", "", "1")
	wantAfter(t, w.store(Config{}), "s", "", 0, "1")
}

func TestAppend_ForgottenStream(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{MaxStreams: 2})
	const many = 10
	for n := range many {
		mustOpen(t, s, fmt.Sprint("s", n%3), fmt.Sprint(n), "0")
	}
	if known := s.streams.all.Len(); known > 2 {
		t.Errorf("%d streams are remembered", known)
	}
	for n := range many {
		mustAppend(t, s, fmt.Sprint("s", n%3), fmt.Sprint(n), "1")
		wantAfter(t, s, fmt.Sprint("s", n%3), fmt.Sprint(n), -1, "0", "1")
	}
}

func TestAppend_LastMessageEndsTheStream(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{})
	const response = `{"jsonrpc":"2.0","id":1,"result":{}}`
	for stream, want := range map[string][]bool{"req": {false, false, true}, "": {false, false, false}} {
		mustOpen(t, s, "s", stream, "", message(1), response)
		var got []bool
		at, _ := placeOf("s", stream)
		for _, e := range w.entries("s", at.stream) {
			got = append(got, e.Final)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v", stream, got)
		}
	}
}

func TestStore_Concurrent(t *testing.T) {
	w := newWorld(t)
	patient := Config{Timeout: waittest.Timeout}
	stores := []*Store{w.store(patient), w.store(patient)}
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			s, other := stores[n%2], stores[(n+1)%2]
			name, stream := fmt.Sprint("s", n%4), fmt.Sprint(n)
			mustOpen(t, s, name, stream)
			var want []string
			for m := range 20 {
				want = append(want, message(m))
				mustAppend(t, s, name, stream, message(m))
				wantAfter(t, s, name, stream, m-1, message(m))
			}
			wantAfter(t, other, name, stream, -1, want...)
		})
	}
	all.Go(func() { // one stream from many goroutines: each event has an index of its own
		mustOpen(t, stores[0], "s", "shared")
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() { mustAppend(t, stores[0], "s", "shared", "x", "x", "x") })
		}
		writers.Wait()
		if got, err := after(t, stores[1], "s", "shared", -1); err != nil || len(got) != 24 {
			t.Errorf("%d events, %v", len(got), err)
		}
	})
	all.Wait()
}

// Entries below the floor do not affect streams that begin after it.
func TestAfter_OtherReplicaBelowTheFloor(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "", "A0")
	wantAfter(t, a, "s", "", -1, "A0")
	w.expire("s")
	mustOpen(t, b, "s", "req", "", "B1")
	wantAfter(t, a, "s", "req", 0, "B1")
}

// Found by the property test.
func TestAfter_NewSessionOfAnotherReplica(t *testing.T) {
	w := newWorld(t)
	a, b := w.store(Config{}), w.store(Config{})
	mustOpen(t, a, "s", "")
	mustOpen(t, b, "s", "req", "B0")
	mustOpen(t, a, "s", "req", "A1")
	wantAfter(t, b, "s", "req", -1, "B0", "A1")
	mustOpen(t, b, "s", "req") // and back again
	mustAppend(t, b, "s", "req", "B2")
	wantAfter(t, a, "s", "req", 0, "A1", "B2")
}

// The index shows a life that has ended as the one that is open: an Append finds the right one.
func TestAppend_IndexShowsAnEarlierLife(t *testing.T) {
	w := newWorld(t)
	s := w.store(Config{})
	mustOpen(t, s, "s", "req", "old")
	earlier := must.Value(w.creator.Sessions.Get(t.Context(), "s"))(t)
	must.NoError(t, s.SessionClosed(t.Context(), "s"))
	ended := must.Value(w.creator.Sessions.Get(t.Context(), "s"))(t)
	must.NoError(t, eventlogtest.Forget(t.Context(), w.creator.Log, "s"))
	must.NoError(t, w.creator.Sessions.Remove(t.Context(), ended))
	now, err := w.creator.Sessions.Create(t.Context(), session.New("s", "", nil, time.Now()))
	if err != nil || now.Life == earlier.Life {
		t.Fatalf("%+v, %v", now, err)
	}
	js := natstest.JetStream(t, w.creator.Conn)
	data := must.Value(json.Marshal(earlier))(t)
	must.Value(js.Publish(t.Context(), "$KV."+session.Bucket+".s", data))(t)
	waittest.Until(t, "the copy shows the earlier life", func() bool {
		rec, _ := s.backend.Sessions.Session("s")
		return rec.Life == earlier.Life && rec.State == session.Open
	})
	mustAppend(t, s, "s", "req", "0", "1")
	for _, s := range []*Store{s, w.store(Config{})} {
		wantAfter(t, s, "s", "req", -1, "0", "1")
	}
	if got := w.entries("s", "req"); len(got) != 2 || got[0].Subject.Life != now.Life {
		t.Errorf("the log has %+v", got)
	}
}
