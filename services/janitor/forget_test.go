package janitor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
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

// forgotten waits until the registry has no record of a session, and the log no opening.
func (r *running) forgotten(t *testing.T, name string) {
	t.Helper()
	waittest.NoError(t, func() error {
		if rec, there := r.b.Sessions.Session(name); there {
			return fmt.Errorf("the registry has %+v", rec)
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
	kinds := map[event.Kind]int{}
	for _, s := range r.subjects(t, name, life) {
		kinds[s.Kind]++
	}
	return kinds
}

// lose deletes buckets, and waits until they exist again: other services may not create them.
func (r *running) lose(t *testing.T, buckets ...string) {
	t.Helper()
	js := natstest.JetStream(t, r.b.Conn)
	for _, name := range buckets {
		must.NoError(t, js.DeleteKeyValue(t.Context(), name))
		waittest.NoError(t, func() error {
			_, err := js.KeyValue(t.Context(), name)
			return err
		})
	}
}

// Without a maximum age and a limit of bytes no floor moves, and the name of a closed session is
// free once the session is forgotten, also for a registry that is built from the log.
func TestForget_NameIsFreeWithUnlimitedRetention(t *testing.T) {
	srv, settings := natstest.StartParallel(t), eventlog.Settings{Partitions: 1, MaxAge: -1, MaxBytes: -1}
	r := begin(t, srv, settings, forgetful())
	first, last := r.used(t, "s")
	r.forgotten(t, "s")
	second, _ := r.used(t, "s")
	if second == first {
		t.Fatalf("the second session has the life %s of the first one", first)
	}
	r.forgotten(t, "s")
	r.lose(t, session.Bucket, rpc.AttachBucket, rpc.CallsBucket)
	r.stop()
	r = begin(t, srv, settings, forgetful()) // its ledger and its registry agree with the log
	r.exact(t)
	var third session.Record
	waittest.NoError(t, func() (err error) {
		third, err = r.b.Sessions.Create(t.Context(), session.New("s", "", nil, time.Now()))
		return err
	}, session.ErrUnavailable)
	r.publish(t, "s", "a", 1)

	for _, life := range []string{first, second} {
		waittest.NoError(t, func() error {
			kinds := r.kindsOf(t, "s", life)
			if len(kinds) != 1 || kinds[event.Trim] == 0 {
				return fmt.Errorf("of a forgotten life the log has %v", kinds)
			}
			return nil
		})
	}
	state := must.Value(r.b.Log.Look(t.Context(), 0))(t)
	partition := must.Value(natstest.JetStream(t, r.b.Conn).Stream(t.Context(), "MCP_0"))(t)
	trim := must.Value(partition.GetLastMsgForSubject(t.Context(), event.Subject{Session: "s", Life: first, Kind: event.Trim}.String()))(t)
	if got := trim.Header.Get("Rejoin-Generation"); got != state.Generation().ID {
		t.Errorf("a trim names the generation %q, which is %v", got, state.Generation())
	}
	at := event.TagParts{Origin: state.Origin, Generation: state.Generations[0].ID, Session: "s", Life: first, Stream: "a"}
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

// A session may ask that it is kept for less than others when it is closed: its name then no longer
// counts. The fence against late events stays until no ingest can believe any more that it is open.
func TestForget_KeptForAsLongAsItAsks(t *testing.T) {
	srv := natstest.Start(t)
	cfg := quick()
	cfg.KeepClosedOverride = flagtype.Duration(3 * time.Hour)
	var clock aheadClock
	r := beginAt(t, srv.URL(), eventlog.Settings{Partitions: 1}, cfg, clock.ofLedgers)
	life := ""
	for name, keep := range map[string]string{"short": `{"keepClosed":1}`, "long": `{"keepClosed":7200}`, "other": `{}`} {
		r.register(t, name, keep)
		if name == "short" {
			life = r.life(name)
		}
		r.publish(t, name, "a", 2)
		r.end(t, name, "")
	}
	clock.ahead.Store(int64(9 * time.Minute))
	waittest.NoError(t, func() error { return wantSequences(r.stored(t, "short", "a"), nil) })
	r.everything(t)
	if _, err := r.b.Sessions.Get(t.Context(), "short"); err != nil {
		t.Errorf("nothing refuses late events of the session: %v", err)
	}
	// Each trim sets the ledger's clock: that of the opening, then that of the rest.
	clock.ahead.Add(int64(20 * time.Minute))
	waittest.NoError(t, func() error {
		if _, err := r.b.Log.Opening(t.Context(), "short"); !errors.Is(err, eventlog.ErrNotFound) {
			return fmt.Errorf("there is an opening: %w", err)
		}
		return nil
	})
	clock.ahead.Add(int64(20 * time.Minute))
	waittest.NoError(t, func() error {
		if kinds := r.kindsOf(t, "short", life); kinds[event.End] > 0 {
			return fmt.Errorf("the log has %v", kinds)
		}
		return nil
	})
	clock.ahead.Add(int64(20 * time.Minute))
	r.forgotten(t, "short")
	for _, name := range []string{"long", "other"} {
		if rec, there := r.b.Sessions.Session(name); !there || rec.State != session.Closed {
			t.Errorf("%s is forgotten too: %+v", name, rec)
		}
		if got := r.stored(t, name, "a"); len(got) != 2 {
			t.Errorf("%s has %v", name, got)
		}
	}
	for keep, want := range map[time.Duration]time.Duration{0: time.Hour, time.Minute: time.Minute, 2 * time.Hour: 2 * time.Hour, 4 * time.Hour: 3 * time.Hour} {
		asked := session.Retention{KeepClosed: keep}
		if got := r.sweeper.limitsOf(session.Record{Retention: asked}).ClosedGrace; got != want {
			t.Errorf("events are kept for %s where %s is asked for", got, keep)
		}
		if got := r.cfg.nameKept(asked); keep > 0 && got != max(want, fenceKept) {
			t.Errorf("the name is kept for %s where %s is asked for", got, keep)
		}
	}
}
