package janitor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

// forgetful is a configuration in which closed sessions are forgotten after a moment.
func forgetful() Config {
	cfg := quick()
	cfg.TombstoneTTL, cfg.ClosedGrace = 100*time.Millisecond, 0
	return cfg
}

// used creates a session, publishes to two streams of it, closes one stream and then the
// session, and returns its life.
func (r *running) used(t *testing.T, name string) (life string, last uint64) {
	t.Helper()
	life = r.create(t, name).Life
	r.publish(t, name, "a", 3)
	last = r.publish(t, name, "b", 2)[1]
	r.end(t, name, "b")
	r.end(t, name, "")
	return life, last
}

// forgotten waits until the index has no record of a session, and the log no opening.
func (r *running) forgotten(t *testing.T, name string) {
	t.Helper()
	eventually(t, func() error {
		if rec, there := r.b.Sessions.Session(name); there {
			return fmt.Errorf("the index has %+v", rec)
		}
		_, err := r.b.Sessions.Get(t.Context(), name)
		if !errors.Is(err, session.ErrNotFound) {
			return fmt.Errorf("the session is found: %w", err)
		}
		return nil
	})
}

// kindsOf returns how many subjects of each kind the log has of a life.
func (r *running) kindsOf(t *testing.T, name, life string) map[event.Kind]int {
	t.Helper()
	of := event.Subject{Partition: r.b.Log.Partition(name), Session: name, Life: life}
	js, err := jetstream.New(r.b.Conn)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[event.Kind]int{}
	eventually(t, func() error {
		stream, err := js.Stream(t.Context(), fmt.Sprint("MCP_", of.Partition))
		if err != nil {
			return err
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(of.Filter()))
		if err != nil {
			return err
		}
		clear(kinds)
		for text := range info.State.Subjects {
			s, err := event.ParseSubject(text)
			if err != nil {
				return err
			}
			kinds[s.Kind]++
		}
		return nil
	})
	return kinds
}

// loseIndex deletes the bucket of the registry, and waits until it is there again.
func (r *running) loseIndex(t *testing.T) {
	t.Helper()
	js, err := jetstream.New(r.b.Conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(t.Context(), session.Bucket); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := js.KeyValue(t.Context(), session.Bucket)
		return err
	})
}

// Without a maximum age and a limit of bytes no floor moves, and the name of a closed session is
// free once the session is forgotten, also for an index that is built from the log.
func TestForget_NameIsFreeWithUnlimitedRetention(t *testing.T) {
	t.Parallel()
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxAge: -1, MaxBytes: -1}
	r := begin(t, srv, settings, forgetful())
	first, last := r.used(t, "s")
	r.forgotten(t, "s")
	second, _ := r.used(t, "s")
	if second == first {
		t.Fatalf("the second session has the life %s of the first one", first)
	}
	r.forgotten(t, "s")
	r.loseIndex(t)
	r.stop()
	r = begin(t, srv, settings, forgetful()) // its ledger and its index know what the log says
	r.exact(t)
	var third session.Record
	passes(t, session.ErrUnavailable, func() (err error) {
		third, err = r.b.Sessions.Create(t.Context(), session.New("s", "", nil, time.Now()))
		return err
	})
	r.publish(t, "s", "a", 1)

	for _, life := range []string{first, second} {
		eventually(t, func() error {
			kinds := r.kindsOf(t, "s", life)
			if len(kinds) != 1 || kinds[event.Trim] == 0 {
				return fmt.Errorf("of a forgotten life the log has %v", kinds)
			}
			return nil
		})
	}
	state, err := r.b.Log.Look(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	at := event.Place{Birth: state.Birth, Generation: state.Generations[0].ID, Session: "s", Life: first, Stream: "a"}
	cursor := event.ID{Stream: "a", Tag: at.Tag(), Sequence: last}
	at.Life = third.Life
	if verdict, _ := event.Resolve(cursor, at, state.Generations); verdict != event.Unknown {
		t.Errorf("a cursor of the first life in the third one: %v", verdict)
	}
	if rec, err := r.b.Sessions.Get(t.Context(), "s"); err != nil || rec.State != session.Open || rec.Life != third.Life {
		t.Errorf("the session that has the name now: %+v, %v", rec, err)
	}
	r.wantCounts(t)
	if strings.Contains(r.log.String(), "nothing explains") {
		t.Error("something is not explained")
	}
}

// The opening of a life goes first, and everything else once it is deleted: at no time is there
// an opening without the seal and the end that go with it.
func TestForget_OpeningGoesFirst(t *testing.T) {
	m := newModel()
	m.open("s") // 1
	m.publish("s", "a", false)
	m.publish("s", "b", false) // up to 5
	m.endStream("s", "b")      // 6
	m.clear("s", "a")          // 7
	m.endSession("s")
	m.endSession("s") // 8 the seal, 9 the end of a, 10 the end
	m.open("another")
	l := rebuilt(m)
	forgettable := func() []announcement {
		t.Helper()
		return slices.Concat(keeper{ledger: l, now: m.now, ttl: 0, index: noIndex}.forgettable()...)
	}
	announced := func(want ...uint64) {
		t.Helper()
		all := forgettable()
		var got []uint64
		for i, one := range all {
			if one.Forgotten != (len(want) > 1 && i == len(all)-1) {
				t.Errorf("trim %d of %d: %+v", i+1, len(all), one)
			}
			got = append(got, one.Removed...)
			one.Sequence = l.through + 1
			of := event.Subject{Session: one.Session, Life: one.Life, Kind: event.Trim}
			l.apply(eventlog.Entry{Subject: of, Valid: true, Sequence: l.through + 1, Time: m.now, Trim: &one.Trim}, m.now)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v are announced, want %v", got, want)
		}
	}
	announced() // there are events
	events := announcements(policy(l.view(l.accounts["s l1"], l.lifeState(l.accounts["s l1"])), limits{}, m.now))
	for _, one := range events {
		one.Sequence = l.through + 1
		of := event.Subject{Session: "s", Life: "l1", Stream: one.Stream, Kind: event.Trim}
		l.apply(eventlog.Entry{Subject: of, Valid: true, Sequence: l.through + 1, Time: m.now, Trim: &one.Trim}, m.now)
	}
	announced() // they are still to be deleted
	l.deleted([]uint64{3, 5})
	announced() // nobody has asked whose the opening is
	l.learn("s", 1, "l1")
	announced(1)
	announced() // it is still to be deleted
	if got := l.accounts["s l1"]; got.bare() || !got.markers.ended() {
		t.Error("the ledger has forgotten the end of a life whose opening is not deleted yet")
	}
	l.deleted([]uint64{1})
	if k := (keeper{ledger: l, now: m.now, ttl: time.Hour, index: noIndex}); len(k.forgettable()) > 0 {
		t.Error("the life is forgotten before its time")
	}
	announced(2, 4, 6, 7, 9, 8, 10)
	announced()
	if a := l.accounts["s l1"]; a == nil || !a.bare() || a.removed != 5 {
		t.Errorf("%+v", a)
	}
	var s loggedSession
	if s.add("l1", l.accounts["s l1"]) {
		t.Error("the trims of a forgotten life hold its name")
	}
}
