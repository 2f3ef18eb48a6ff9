package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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

func TestCreate_Once(t *testing.T) {
	_, r, l := single(t)
	other, _ := open(t, l.Conn())
	now := time.Now()
	rec := must.Value(r.Create(waittest.Context(t), session.New("s/1", "me", json.RawMessage(`{"a":[1]}`), now)))(t)
	if rec.State != session.Open || rec.Session != "s/1" || rec.Owner != "me" || rec.Life == "" || rec.Revision == 0 || !rec.Created.Equal(now) {
		t.Errorf("created %+v", rec)
	}
	for _, again := range []*session.Registry{r, other} {
		if _, err := again.Create(waittest.Context(t), session.New("s/1", "you", nil, now)); !errors.Is(err, session.ErrExists) {
			t.Errorf("again: %v", err)
		}
		got, err := again.Get(waittest.Context(t), "s/1")
		if err != nil || got.Life != rec.Life || string(got.Metadata) != `{"a":[1]}` || got.Revision != rec.Revision {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if got, ok := r.Session("s/1"); !ok || got.Revision != rec.Revision {
		t.Errorf("its own copy is %+v", got)
	}
	waittest.Until(t, "the other copy", func() bool { _, ok := other.Session("s/1"); return ok })
	if _, err := r.Get(waittest.Context(t), "s"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("another session: %v", err)
	}
}

// A name is taken while the log or the registry has the session, open or ended.
func TestCreate_NameIsTaken(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		for _, lost := range []string{"nothing", "record", "opening"} {
			t.Run(fmt.Sprintf("ended=%t/lost=%s", ended, lost), func(t *testing.T) {
				nc := connect(t, natstest.Start(t))
				r, l := create(t, nc)
				mustCreate(t, r, "s")
				if ended {
					mustEnd(t, r, "s", "")
				}
				switch lost {
				case "record":
					forget(t, nc, "s")
				case "opening":
					forgetOpening(t, l, "s")
				}
				if _, err := r.Create(waittest.Context(t), session.New("s", "", nil, time.Now())); !errors.Is(err, session.ErrExists) {
					t.Errorf("it is created again: %v", err)
				}
				_, err := register(waittest.Context(t), r, "s", "")
				if ended && !errors.Is(err, session.ErrClosed) || !ended && err != nil {
					t.Errorf("it is registered again: %v", err)
				}
			})
		}
	}
}

func TestRegister_Concurrent(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	first, _ := create(t, nc)
	second, _ := open(t, nc)
	third, _ := open(t, nc)
	registries := []*session.Registry{first, second, third}
	for round := range 20 {
		name := fmt.Sprintf("s%d", round)
		lives := make([]string, 12)
		var wg sync.WaitGroup
		for i := range lives {
			wg.Go(func() {
				rec, err := register(waittest.Context(t), registries[i%3], name, "")
				if err != nil {
					t.Error(err)
				}
				lives[i] = rec.Life
			})
		}
		wg.Wait()
		for _, life := range lives {
			if life == "" || life != lives[0] {
				t.Fatalf("lives %q", lives)
			}
		}
	}
}

// remove removes a record as the janitor does, when the log has forgotten the session.
func remove(t *testing.T, r *session.Registry, l *eventlog.Log, rec session.Record) error {
	t.Helper()
	if err := eventlogtest.Forget(waittest.Context(t), l, rec.Session); err != nil {
		return err
	}
	return r.Remove(waittest.Context(t), rec)
}

func TestRemove(t *testing.T) {
	_, r, l := single(t)
	other, _ := open(t, l.Conn())
	rec := mustCreate(t, r, "s")
	mustEnd(t, other, "s", "")
	newer, err := other.Get(waittest.Context(t), "s")
	if err != nil || newer.Revision <= rec.Revision {
		t.Fatalf("%+v, %v", newer, err)
	}
	if err := r.Remove(waittest.Context(t), rec); !errors.Is(err, session.ErrConflict) {
		t.Errorf("it was changed meanwhile: %v", err)
	}
	if got, err := r.Get(waittest.Context(t), "s"); err != nil || got.State != session.Closed {
		t.Errorf("%+v, %v", got, err)
	}
	if err := r.Remove(waittest.Context(t), newer); !errors.Is(err, session.ErrConflict) {
		t.Errorf("the log has its opening: %v", err)
	}
	must.NoError(t, remove(t, r, l, newer))
	for _, reg := range []*session.Registry{r, other} {
		waittest.Until(t, "it is not in the copy", func() bool { _, ok := reg.Session("s"); return !ok })
		if _, err := reg.Get(waittest.Context(t), "s"); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("it is there: %v", err)
		}
	}
	again := mustCreate(t, r, "s")
	if again.Life == rec.Life {
		t.Error("the new session has the old one's life")
	}
	for _, old := range []session.Record{rec, newer, {Session: "s", Life: rec.Life, Revision: again.Revision}} {
		if err := r.Remove(waittest.Context(t), old); !errors.Is(err, session.ErrConflict) {
			t.Errorf("the name was used again: %v", err)
		}
	}
	waittest.Until(t, "the new one in the other copy", func() bool { got, _ := other.Session("s"); return got.Life == again.Life })
}

// The copy holds the records of this process as soon as they are written. The watch,
// which shows older revisions after that, must not undo that.
func TestSession_CopyNeverGoesBack(t *testing.T) {
	srv, r, l := single(t)
	busy, _ := open(t, connect(t, srv))
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	round := func(r *session.Registry, name string) error {
		rec, err := r.Create(waittest.Context(t), session.New(name, "", nil, time.Now()))
		if err != nil {
			return err
		}
		if got, ok := r.Session(name); !ok || got.Revision < rec.Revision || got.Life != rec.Life {
			return fmt.Errorf("the copy is %+v after %+v", got, rec)
		}
		if err := r.End(waittest.Context(t), name, "", false); err != nil {
			return err
		}
		got, ok := r.Session(name)
		if !ok || got.Revision <= rec.Revision || got.State != session.Closed {
			return fmt.Errorf("the copy is %+v after its end", got)
		}
		return remove(t, r, l, got)
	}
	for n := range 4 { // so that the watch has work
		others.Go(func() {
			for ctx.Err() == nil {
				if err := round(busy, fmt.Sprint("other", n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		must.NoError(t, round(r, "s"))
	}
}

func TestGet_AsksTheLeaderAndNotAReplica(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	create(t, nc)
	js := natstest.JetStream(t, nc)
	stream := must.Value(js.Stream(waittest.Context(t), "KV_"+session.Bucket))(t)
	if cfg := stream.CachedInfo().Config; cfg.AllowDirect || cfg.MaxConsumers != 100_000 || !cfg.AllowMsgTTL {
		t.Errorf("the bucket is %+v", cfg)
	}
	direct := must.Value(nc.SubscribeSync("$JS.API.DIRECT.GET.>"))(t)
	defer func() { _ = direct.Unsubscribe() }()
	r, _ := open(t, nc)
	mustCreate(t, r, "s")
	mustEnd(t, r, "s", "")
	must.Value(r.Get(waittest.Context(t), "s"))(t)
	if n, _, err := direct.Pending(); err != nil || n != 0 {
		t.Errorf("%d direct reads, %v", n, err)
	}
}

func TestOpenRegistry_WaitsForTheBucket(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	l := newLog(t, nc, one())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := session.OpenRegistry(ended, l, quiet()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	opened := make(chan func(must.TB) *session.Registry, 1)
	ctx := waittest.Context(t)
	go func() { opened <- must.Value(session.OpenRegistry(ctx, l, quiet())) }()
	for range 2 { // again is no error
		r := must.Value(session.Create(waittest.Context(t), l, quiet()))(t)
		t.Cleanup(r.Close)
	}
	(<-opened)(t).Close()
}

// The bucket may be unavailable for as long as a cluster has too few servers, and each process tries five
// times a second.
func TestOpenRegistry_LogsThatTheBucketIsAwayOnce(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	l := newLog(t, nc, one())
	creator := must.Value(session.Create(waittest.Context(t), l, quiet()))(t)
	creator.Close() // else it creates the bucket again
	var logged waittest.Buffer
	r := must.Value(session.OpenRegistry(waittest.Context(t), l, slog.New(slog.NewTextHandler(&logged, nil))))(t)
	t.Cleanup(r.Close)
	attempts := must.Value(nc.SubscribeSync("$JS.API.CONSUMER.CREATE.KV_" + session.Bucket + ".>"))(t)
	must.NoError(t, natstest.JetStream(t, nc).DeleteStream(waittest.Context(t), "KV_"+session.Bucket))
	must.NoError(t, nc.ForceReconnect()) // a watch that continues would notice half a minute later
	for range 4 {
		must.Value(attempts.NextMsgWithContext(waittest.Context(t)))(t)
	}
	if n := strings.Count(logged.String(), "stream not found"); n > 1 {
		t.Errorf("%d lines:\n%s", n, logged.String())
	}
}

func TestSession_CopyFollowsARollback(t *testing.T) {
	srv, r, l := single(t)
	eventlogtest.Begin(t, l)
	kept := mustCreate(t, r, "kept")
	older := filepath.Join(t.TempDir(), "older")
	restart := func(stopped func()) {
		t.Helper()
		srv.Stop()
		stopped()
		srv.Start()
	}
	restart(func() {
		must.NoError(t, os.CopyFS(older, os.DirFS(srv.Dir())))
	})
	answered(t, func(ctx context.Context) error {
		_, err := register(ctx, r, "lost", "")
		return err
	})
	answered(t, func(ctx context.Context) error { return r.End(ctx, "kept", "", false) })
	restart(func() {
		must.NoError(t, errors.Join(os.RemoveAll(srv.Dir()), os.CopyFS(srv.Dir(), os.DirFS(older))))
	})
	waittest.Until(t, "the copy is the older one", func() bool {
		_, lost := r.Session("lost")
		got, ok := r.Session("kept")
		return !lost && ok && got.State == session.Open && got.Revision == kept.Revision
	})
	if all := r.Sessions(); len(all) != 1 {
		t.Errorf("all: %+v", all)
	}
	answered(t, func(ctx context.Context) error { _, err := r.Get(ctx, "kept"); return err })
	if err := publish(t, l, kept); err != nil {
		t.Errorf("its end is lost, and: %v", err)
	}
}

func TestGet_RecordCannotBeRead(t *testing.T) {
	_, r, l := single(t)
	good := mustCreate(t, r, "good")
	for key, value := range map[string]string{"a": "{", "b": `{"session":"c"}`, "c.d": `{"session":"c"}`, "good": `null`} {
		putRaw(t, l.Conn(), key, value)
	}
	other, _ := open(t, l.Conn())
	if all := other.Sessions(); len(all) != 0 {
		t.Errorf("all: %+v", all)
	}
	if got, err := other.Get(waittest.Context(t), "good"); err != nil || got.Life != good.Life {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"a", "b"} {
		if rec, err := r.Get(waittest.Context(t), name); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("%+v, %v", rec, err)
		}
		if err := r.End(waittest.Context(t), name, "", false); !errors.Is(err, session.ErrNotFound) {
			t.Error(err)
		}
		if rec, err := register(waittest.Context(t), r, name, ""); err != nil || rec.Revision == 0 || rec.State != session.Open {
			t.Errorf("%+v, %v", rec, err)
		}
	}
}
