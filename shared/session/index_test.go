package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// A bucket that is deleted under the running system is created again, and written again.
func TestIndex_Deleted(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := connect(t, srv)
	r, _ := create(t, nc)
	other, _ := open(t, connect(t, srv))
	made := mustCreate(t, other, "s")
	must.NoError(t, natstest.JetStream(t, nc).DeleteStream(waittest.Context(t), "KV_"+session.Bucket))
	for _, reg := range []*session.Registry{r, other} {
		waittest.Until(t, "it is there again", func() bool {
			got, err := reg.Get(waittest.Context(t), "s")
			return err == nil && got.Life == made.Life && got.Revision > 0
		})
		waittest.Until(t, "it is in the copy", func() bool { got, ok := reg.Session("s"); return ok && got.Life == made.Life })
	}
	mustCreate(t, other, "another")
}

// Without its records, a registry answers from the log and writes them again.
func TestIndex_Lost(t *testing.T) {
	t.Parallel()
	ask := map[string]func(context.Context, *session.Registry) (session.Record, error){
		"Get":       func(ctx context.Context, r *session.Registry) (session.Record, error) { return r.Get(ctx, "s") },
		"CopyOrGet": func(ctx context.Context, r *session.Registry) (session.Record, error) { return r.CopyOrGet(ctx, "s") },
		"Register": func(ctx context.Context, r *session.Registry) (session.Record, error) {
			return register(ctx, r, "s", "mallory")
		},
		"Visible": func(ctx context.Context, r *session.Registry) (session.Record, error) {
			return r.Visible(ctx, "s", ownedBy("alice"))
		},
	}
	for name, ask := range ask {
		for _, ended := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				nc := connect(t, natstest.Start(t))
				r, l := create(t, nc)
				made := must.Value(r.Create(waittest.Context(t), session.New("s", "alice", json.RawMessage(`{"retention":{"maxEvents":7}}`), time.Now())))(t)
				state := session.Open
				if ended {
					mustEnd(t, r, "s", "")
					state = session.Closed
				}
				forget(t, nc, "s")
				waittest.Until(t, "the copy is empty", func() bool { return len(r.Sessions()) == 0 })
				got, err := ask(waittest.Context(t), r)
				if name == "Register" && ended {
					if !errors.Is(err, session.ErrClosed) {
						t.Error(err)
					}
				} else if err != nil || got.Life != made.Life || got.State != state || got.Owner != "alice" || got.Retention.MaxEvents != 7 || !got.Created.Equal(made.Created) {
					t.Fatalf("%+v, %v; it was %+v", got, err, made)
				}
				if rec, err := r.Visible(waittest.Context(t), "s", ownedBy("mallory")); !errors.Is(err, session.ErrNotFound) {
					t.Errorf("it belongs to somebody else: %+v, %v", rec, err)
				}
				other, _ := open(t, nc)
				if rec, ok := other.Session("s"); !ok || rec.Life != made.Life || rec.State != state || rec.Owner != "alice" || string(rec.Metadata) != string(made.Metadata) {
					t.Errorf("the registry has %+v", rec)
				}
				if err := publish(t, l, made); errors.Is(err, session.ErrClosed) != ended {
					t.Errorf("a publish: %v", err)
				}
			})
		}
	}
}

// A registry that is older or newer than the log is corrected by the first look-up. Until then the
// fences refuse a publish that it allows wrongly, and its denials are checked in the log.
func TestIndex_OlderRecord(t *testing.T) {
	t.Parallel()
	other := session.New("s", "mallory", nil, time.Now())
	for name, tt := range map[string]struct {
		ended     bool
		forgotten bool // the opening has aged out
		shown     func(session.Record) session.Record
	}{
		"closed shown open": {ended: true, shown: func(r session.Record) session.Record {
			r.State, r.Ended = session.Open, time.Time{}
			return r
		}},
		"closed shown open without its opening": {ended: true, forgotten: true, shown: func(r session.Record) session.Record {
			r.State, r.Ended = session.Open, time.Time{}
			return r
		}},
		"open shown in an earlier life": {shown: func(session.Record) session.Record { return other }},
		"open shown in an earlier life that has ended": {shown: func(session.Record) session.Record {
			r := other
			r.State, r.Ended = session.Closed, time.Now()
			return r
		}},
		"closed shown in an earlier life": {ended: true, shown: func(session.Record) session.Record { return other }},
	} {
		t.Run(name, func(t *testing.T) {
			nc := connect(t, natstest.Start(t))
			r, l := create(t, nc)
			// The earlier life, which has ended as lives do.
			must.Value(r.Create(waittest.Context(t), other))(t)
			mustEnd(t, r, "s", "")
			must.NoError(t, remove(t, r, l, must.Value(r.Get(waittest.Context(t), "s"))(t)))
			made := mustCreate(t, r, "s")
			state := session.Open
			if tt.ended {
				mustEnd(t, r, "s", "")
				state = session.Closed
			}
			if tt.forgotten {
				forgetOpening(t, l, "s")
			}
			shown := tt.shown(made)
			data := must.Value(json.Marshal(shown))(t)
			revision := putRaw(t, nc, "s", string(data))
			waittest.Until(t, "the copy shows it", func() bool { rec, _ := r.Session("s"); return rec.Revision == revision })

			// With the record of the copy, no message is stored that the log's session does not take.
			if rec, err := r.CopyOrGet(waittest.Context(t), "s"); err != nil {
				t.Error(err)
			} else if rec.Life != made.Life || tt.ended {
				if err := publish(t, l, rec); !errors.Is(err, session.ErrClosed) {
					t.Errorf("a publish to %+v: %v", rec, err)
				}
			}
			got, err := r.Get(waittest.Context(t), "s")
			if err != nil || got.Life != made.Life || got.State != state || got.Owner != made.Owner {
				t.Errorf("%+v, %v; it is %+v", got, err, made)
			}
			if rec, ok := r.Session("s"); !ok || rec.Life != made.Life || rec.State != state {
				t.Errorf("the copy is %+v", rec)
			}
			if _, err := register(waittest.Context(t), r, "s", ""); errors.Is(err, session.ErrClosed) != tt.ended {
				t.Errorf("Register: %v", err)
			}
			if rec, err := r.Visible(waittest.Context(t), "s", ownedBy("mallory")); !errors.Is(err, session.ErrNotFound) {
				t.Errorf("it belongs to somebody else: %+v, %v", rec, err)
			}
			if err := publish(t, l, got); errors.Is(err, session.ErrClosed) != tt.ended {
				t.Errorf("a publish: %v", err)
			}
			if late, _ := open(t, nc); true {
				if rec, ok := late.Session("s"); !ok || rec.Life != made.Life || rec.State != state {
					t.Errorf("the registry has %+v", rec)
				}
			}
		})
	}
}

// The log loses the seal and the ends in a roll-back, and the registry does not: a look-up has the
// log get them again, since the session must store nothing more.
func TestGet_LogRolledBackBehindTheSeal(t *testing.T) {
	srv, r, l := single(t)
	eventlogtest.Begin(t, l)
	made := mustCreate(t, r, "s")
	must.NoError(t, publish(t, l, made))
	older := filepath.Join(t.TempDir(), "older")
	partition := filepath.Join(srv.Dir(), "jetstream", "$G", "streams", "MCP_0")
	srv.Stop()
	must.NoError(t, os.CopyFS(older, os.DirFS(partition)))
	srv.Start()
	answered(t, func(ctx context.Context) error { return r.End(ctx, "s", "", false) })
	if err := publish(t, l, made); !errors.Is(err, session.ErrClosed) {
		t.Fatal(err)
	}
	srv.Stop()
	must.NoError(t, errors.Join(os.RemoveAll(partition), os.CopyFS(partition, os.DirFS(older))))
	srv.Start()
	var got session.Record
	answered(t, func(ctx context.Context) (err error) { got, err = r.CopyOrGet(ctx, "s"); return err })
	if got.State != session.Closed || got.Life != made.Life || got.Ended.IsZero() {
		t.Errorf("it is %+v", got)
	}
	if err := publish(t, l, got); !errors.Is(err, session.ErrClosed) {
		t.Error(err)
	}
	end := event.Subject{Partition: l.Partition("s"), Session: "s", Life: made.Life, Kind: event.End}
	if _, err := l.NewestSequence(waittest.Context(t), end); err != nil {
		t.Errorf("%s: %v", end, err)
	}
}

// A service whose NATS user may not write the bucket answers from the log all the same, and
// corrects its own copy.
func TestReadOnly_LeavesTheIndex(t *testing.T) {
	_, r, l := single(t)
	made := mustCreate(t, r, "s")
	edge, _ := open(t, l.Conn())
	edge.ReadOnly()
	forget(t, l.Conn(), "s")
	waittest.Until(t, "the copies are empty", func() bool { return len(r.Sessions()) == 0 && len(edge.Sessions()) == 0 })
	rec, err := edge.Get(waittest.Context(t), "s")
	if err != nil || rec.Life != made.Life || rec.State != session.Open || rec.Revision != 0 {
		t.Errorf("it has %+v, %v", rec, err)
	}
	if rec, ok := edge.Session("s"); !ok || rec.Life != made.Life {
		t.Errorf("its copy has %+v", rec)
	}
	if other, _ := open(t, l.Conn()); len(other.Sessions()) != 0 {
		t.Errorf("the registry was written: %+v", other.Sessions())
	}
	must.Value(r.Get(waittest.Context(t), "s"))(t)
	waittest.Until(t, "the registry is written by another service", func() bool { rec, _ := edge.Session("s"); return rec.Revision != 0 })
}

// A registry that keeps some partitions has their records alone, those of the previous ones until it
// has the others, and all that are written meanwhile.
func TestKeep_RecordsOfPartitions(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := connect(t, srv)
	writer, l := createWith(t, nc, eventlog.Settings{Partitions: 3})
	r, _ := open(t, connect(t, srv))
	n := 0
	write := func() {
		for range 20 {
			mustCreate(t, writer, fmt.Sprint("s", n))
			n++
		}
	}
	write()
	for _, kept := range [][]bool{{true, false, true}, {false, true, false}, {false, false, false}, {true, true, true}} {
		copied := make(chan struct{})
		r.Keep(kept, func() { close(copied) })
		for p, k := range kept {
			if !k && r.Has(p) {
				t.Errorf("it says that it keeps partition %d", p)
			}
		}
		write()
		waittest.Receive(t, "the copy is complete", copied)
		waittest.Until(t, "the copy has what is kept", func() bool {
			for p, k := range kept {
				if k != r.Has(p) {
					return false
				}
			}
			found := 0
			for i := range n {
				name := fmt.Sprint("s", i)
				rec, ok := r.Session(name)
				if ok != kept[l.Partition(name)] || ok && rec.Session != name {
					return false
				}
				if ok {
					found++
				}
			}
			return found == len(r.Sessions())
		})
		if rec, err := r.Get(waittest.Context(t), "s1"); err != nil || rec.Session != "s1" {
			t.Errorf("Get returns %+v, %v", rec, err)
		}
	}
}
