package session_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// allowed lets every change of members pass.
func allowed(session.Record) error { return nil }

// usedBy is for [session.Registry.Visible]: whether a session has a member.
func usedBy(member string) func(session.Record) bool {
	return func(rec session.Record) bool { return slices.Contains(rec.Members, member) }
}

func mustSetMembers(t *testing.T, r *session.Registry, name string, members ...string) session.Record {
	t.Helper()
	rec, err := r.SetMembers(waittest.Context(t), name, members, allowed)
	if err != nil || !slices.Equal(rec.Members, members) {
		t.Fatalf("%q, %v", rec.Members, err)
	}
	return rec
}

func TestSetMetadata(t *testing.T) {
	srv, r, l := single(t)
	other, _ := open(t, connect(t, srv))
	made := must.Value(r.Create(waittest.Context(t), session.New("s", "alice", json.RawMessage(`{"retention":{"keepClosed":300}}`), time.Now()).WithMembers([]string{"bob"})))(t)
	longer := json.RawMessage(`{"retention":{"keepClosed":3600}}`)
	got, err := other.SetMetadata(waittest.Context(t), "s", made.Life, longer)
	if err != nil || got.Owner != "alice" || len(got.Members) != 1 || got.Retention.KeepClosed != time.Hour || got.Changes != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if o, err := l.Opening(waittest.Context(t), "s"); err != nil || string(o.Metadata) != string(longer) || o.Life != made.Life {
		t.Errorf("the log has %+v, %v", o, err)
	}
	waittest.Until(t, "all copies have it", func() bool {
		here, _ := r.Session("s")
		there, _ := other.Session("s")
		return here.Retention.KeepClosed == time.Hour && there.Retention.KeepClosed == time.Hour
	})
	before := len(subjects(t, l, made))
	if _, err := r.SetMetadata(waittest.Context(t), "s", made.Life, longer); err != nil || len(subjects(t, l, made)) != before {
		t.Errorf("metadata that does not change is stored again, or %v", err)
	}
	if _, err := r.SetMetadata(waittest.Context(t), "s", "another", nil); !errors.Is(err, session.ErrClosed) {
		t.Errorf("in another life: %v", err)
	}
}

func TestSetMembers(t *testing.T) {
	srv, r, l := single(t)
	other, _ := open(t, connect(t, srv))
	made := must.Value(r.Create(waittest.Context(t), session.New("s", "alice", json.RawMessage(`{"a":1}`), time.Now()).WithMembers([]string{"bob"})))(t)
	if rec, err := other.Visible(waittest.Context(t), "s", usedBy("bob")); err != nil || rec.Life != made.Life {
		t.Errorf("%+v, %v", rec, err)
	}
	got := mustSetMembers(t, other, "s", "carol", "dave")
	if got.Life != made.Life || got.Owner != "alice" || string(got.Metadata) != `{"a":1}` || got.Changes != 1 || got.Usage().MetadataBytes != int64(len(`{"a":1}["carol","dave"]`)) {
		t.Errorf("%+v", got)
	}
	// A member who was added is let in at once, with any content of the copy.
	if rec, err := r.Visible(waittest.Context(t), "s", usedBy("carol")); err != nil || rec.Life != made.Life {
		t.Errorf("%+v, %v", rec, err)
	}
	waittest.Until(t, "all copies know who was taken out", func() bool {
		_, here := r.Visible(waittest.Context(t), "s", usedBy("bob"))
		_, there := other.Visible(waittest.Context(t), "s", usedBy("bob"))
		return errors.Is(here, session.ErrNotFound) && errors.Is(there, session.ErrNotFound)
	})
	must.NoError(t, publish(t, l, made))
	before := len(subjects(t, l, made))
	if mustSetMembers(t, r, "s", "carol", "dave"); len(subjects(t, l, made)) != before {
		t.Error("members that do not change are stored again")
	}
	no := errors.New("no")
	if _, err := r.SetMembers(waittest.Context(t), "s", nil, func(session.Record) error { return no }); !errors.Is(err, no) || len(subjects(t, l, made)) != before {
		t.Errorf("a change that is refused: %v", err)
	}
	if _, err := r.SetMembers(waittest.Context(t), "nothing", nil, allowed); !errors.Is(err, session.ErrNotFound) {
		t.Error(err)
	}
	mustEnd(t, r, "s", "")
	if _, err := r.SetMembers(waittest.Context(t), "s", nil, allowed); !errors.Is(err, session.ErrClosed) {
		t.Error(err)
	}
	waittest.Until(t, "a member sees that the session has ended", func() bool {
		rec, err := other.Visible(waittest.Context(t), "s", usedBy("dave"))
		return err == nil && rec.State == session.Closed
	})
}

// A later version may store more fields of a session in the log than this one knows.
func TestSetMembers_KeepsWhatALaterVersionHasStored(t *testing.T) {
	_, r, l := single(t)
	js := natstest.JetStream(t, l.Conn())
	msg := nats.NewMsg(event.Subject{Partition: l.Partition("s"), Session: "s", Kind: event.Open}.String())
	msg.Data = []byte(`{"life":"l","readers":["eve"],"created":"2026-01-02T03:04:05Z"}`)
	must.Value(js.PublishMsg(waittest.Context(t), msg))(t)
	mustSetMembers(t, r, "s", "bob")
	o, err := l.Opening(waittest.Context(t), "s")
	if err != nil || !slices.Equal(o.Members, []string{"bob"}) || string(o.Later["readers"]) != `["eve"]` {
		t.Errorf("%+v, %v", o, err)
	}
}

// After any damage to the registry, the members are those of the log.
func TestSetMembers_IndexLostOrOlder(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, *nats.Conn, []byte){
		"the bucket is deleted": func(t *testing.T, nc *nats.Conn, _ []byte) {
			must.NoError(t, natstest.JetStream(t, nc).DeleteStream(waittest.Context(t), "KV_"+session.Bucket))
		},
		"an older record is put back":  func(t *testing.T, nc *nats.Conn, older []byte) { putRaw(t, nc, "s", string(older)) },
		"a record that cannot be read": func(t *testing.T, nc *nats.Conn, _ []byte) { putRaw(t, nc, "s", "{") },
	} {
		t.Run(name, func(t *testing.T) {
			nc := connect(t, natstest.Start(t))
			r, _ := create(t, nc)
			made := mustCreate(t, r, "s")
			older := must.Value(json.Marshal(made))(t)
			mustSetMembers(t, r, "s", "bob")
			damage(t, nc, older)
			waittest.Until(t, "the log is asked", func() bool {
				rec, err := r.Get(waittest.Context(t), "s")
				return err == nil && slices.Equal(rec.Members, []string{"bob"}) && rec.Changes == 1 && rec.Revision > 0
			})
			waittest.Until(t, "the copy has them", func() bool {
				rec, _ := r.Session("s")
				return slices.Equal(rec.Members, []string{"bob"})
			})
			mustSetMembers(t, r, "s", "bob", "carol")
		})
	}
}

// Of changes at the same time each is stored once, and the registry has the last one.
func TestSetMembers_AtTheSameTime(t *testing.T) {
	srv, r, l := single(t)
	other, _ := open(t, connect(t, srv))
	made := mustCreate(t, r, "s")
	var wg sync.WaitGroup
	var mu sync.Mutex
	changed := 0
	for i := range 6 {
		at := []*session.Registry{r, other}[i%2]
		wg.Go(func() {
			_, err := at.SetMembers(waittest.Context(t), "s", []string{fmt.Sprint(i)}, allowed)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				changed++
			} else if !errors.Is(err, session.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if changed == 0 {
		t.Error("no request was let through")
	}
	o, err := l.Opening(waittest.Context(t), "s")
	if err != nil || o.Life != made.Life || o.Changes < uint64(changed) {
		t.Errorf("%+v, %v; %d succeeded", o, err, changed)
	}
	rec, err := r.Get(waittest.Context(t), "s")
	if err != nil || !slices.Equal(rec.Members, o.Members) || rec.Changes != o.Changes {
		t.Errorf("%+v, %v", rec, err)
	}
	waittest.Until(t, "the copies agree", func() bool {
		here, _ := r.Session("s")
		there, _ := other.Session("s")
		return slices.Equal(here.Members, o.Members) && slices.Equal(there.Members, o.Members)
	})
}

// After a change of members while the session ends, it is ended.
func TestSetMembers_WhileItEnds(t *testing.T) {
	_, r, l := single(t)
	for i := range 20 {
		name := fmt.Sprint("s", i)
		made := mustCreate(t, r, name)
		must.NoError(t, publish(t, l, made))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := r.SetMembers(waittest.Context(t), name, []string{"bob"}, allowed); err != nil && !errors.Is(err, session.ErrClosed) {
				t.Error(err)
			}
		})
		mustEnd(t, r, name, "")
		wg.Wait()
		if rec, err := r.Get(waittest.Context(t), name); err != nil || rec.State != session.Closed || rec.Life != made.Life {
			t.Errorf("%+v, %v", rec, err)
		}
		if err := publish(t, l, made); !errors.Is(err, session.ErrClosed) {
			t.Errorf("a publish: %v", err)
		}
	}
}
