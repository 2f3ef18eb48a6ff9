package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

func TestASessionIsCreatedOnce(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	r, other := create(t, nc), open(t, nc)
	now := time.Now()
	rec, err := r.Create(patient(t), session.New("s/1", "me", json.RawMessage(`{"a":[1]}`), now))
	if err != nil {
		t.Fatal(err)
	}
	if rec.State != session.Open || rec.Session != "s/1" || rec.Owner != "me" || rec.Incarnation == "" || rec.Revision == 0 || !rec.Created.Equal(now) {
		t.Errorf("created %+v", rec)
	}
	for _, again := range []*session.Registry{r, other} {
		if _, err := again.Create(patient(t), session.New("s/1", "you", nil, now)); !errors.Is(err, session.ErrExists) {
			t.Errorf("again: %v", err)
		}
		got, err := again.Get(patient(t), "s/1", "")
		if err != nil || got.Incarnation != rec.Incarnation || string(got.Metadata) != `{"a":[1]}` || got.Revision != rec.Revision {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if got, ok := r.Session("s/1"); !ok || got.Revision != rec.Revision {
		t.Errorf("its own copy is %+v", got)
	}
	eventually(t, "the other copy", func() bool { _, ok := other.Session("s/1"); return ok })
	if _, err := r.Get(patient(t), "s", ""); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("another session: %v", err)
	}
}

func TestTheRecordsOfASessionAreItsOwnAndThoseOfItsStreams(t *testing.T) {
	r := create(t, connect(t, natstest.Start(t)))
	for _, rec := range []session.Record{
		session.New("s", "", nil, time.Now()), session.New("s.a", "", nil, time.Now()), {Session: "s", Stream: "a"}, {Session: "s.a", Stream: "s"},
	} {
		if _, err := r.Create(patient(t), rec); err != nil {
			t.Fatal(err)
		}
	}
	var streams []string
	for _, rec := range r.Of("s") {
		if rec.Session != "s" {
			t.Errorf("%+v", rec)
		}
		streams = append(streams, rec.Stream)
	}
	if slices.Sort(streams); !slices.Equal(streams, []string{"", "a"}) {
		t.Errorf("they are of %q", streams)
	}
	if all := r.Of("a"); len(all) > 0 {
		t.Errorf("%+v", all)
	}
}

func TestManyCreateOneSession(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	first := create(t, nc)
	registries := []*session.Registry{first, open(t, nc), open(t, nc)}
	for round := range 20 {
		name := fmt.Sprintf("s%d", round)
		incarnations := make([]string, 12)
		var wg sync.WaitGroup
		for i := range incarnations {
			wg.Go(func() {
				rec, err := registries[i%3].Register(patient(t), name, "")
				if err != nil {
					t.Error(err)
				}
				incarnations[i] = rec.Incarnation
			})
		}
		wg.Wait()
		for _, in := range incarnations {
			if in == "" || in != incarnations[0] {
				t.Fatalf("incarnations %q", incarnations)
			}
		}
	}
}

func TestAWriteOverAnotherIsRefused(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	r, other := create(t, nc), open(t, nc)
	rec := mustCreate(t, r, "s")
	changed := rec
	changed.Owner = "changed"
	newer, err := other.Update(patient(t), changed)
	if err != nil || newer.Revision <= rec.Revision {
		t.Fatalf("%+v, %v", newer, err)
	}
	if _, err := r.Update(patient(t), rec); !errors.Is(err, session.ErrConflict) {
		t.Errorf("update: %v", err)
	}
	if err := r.Remove(patient(t), rec); !errors.Is(err, session.ErrConflict) {
		t.Errorf("remove: %v", err)
	}
	if err := r.Remove(patient(t), newer); err != nil {
		t.Errorf("remove: %v", err)
	}
	for _, reg := range []*session.Registry{r, other} {
		eventually(t, "gone from the copy", func() bool { _, ok := reg.Session("s"); return !ok })
	}
	if _, err := r.Update(patient(t), newer); !errors.Is(err, session.ErrConflict) {
		t.Errorf("update of what was removed: %v", err)
	}
	again := mustCreate(t, r, "s")
	if again.Incarnation == rec.Incarnation {
		t.Error("the new session has the old one's incarnation")
	}
	eventually(t, "the new one in the other copy", func() bool { got, _ := other.Session("s"); return got.Incarnation == again.Incarnation })
}

// The copy holds what this process wrote as soon as it is written. The watch,
// which shows older revisions after that, must not take it back.
func TestTheCopyNeverGoesBack(t *testing.T) {
	srv := natstest.Start(t)
	nc := connect(t, srv)
	r, busy := create(t, nc), open(t, connect(t, srv))
	rec := mustCreate(t, r, "s")
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	for n := range 4 { // so that the watch has something to do
		others.Go(func() {
			for other := mustCreate(t, busy, fmt.Sprint("other", n)); ctx.Err() == nil; {
				next, err := busy.Update(patient(t), other)
				if err != nil {
					t.Error(err)
					return
				}
				other = next
			}
		})
	}
	for range 500 {
		var err error
		if rec, err = r.Update(patient(t), rec); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got, ok := r.Session("s"); !ok || got.Revision < rec.Revision {
				t.Fatalf("the copy is at revision %d after %d", got.Revision, rec.Revision)
			}
		}
	}
	for range 200 {
		if err := r.Remove(patient(t), rec); err != nil {
			t.Fatal(err)
		}
		rec = mustCreate(t, r, "s")
		if got, ok := r.Session("s"); !ok || got.Revision != rec.Revision {
			t.Fatalf("the copy is %+v, %v", got, ok)
		}
	}
}

func TestTheLeaderIsAskedAndNotAReplica(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	create(t, nc)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(patient(t), "KV_"+session.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	if cfg := stream.CachedInfo().Config; cfg.AllowDirect || cfg.MaxConsumers != 100_000 || !cfg.AllowMsgTTL {
		t.Errorf("the bucket is %+v", cfg)
	}
	var watched sync.WaitGroup
	defer watched.Wait()
	direct, err := nc.SubscribeSync("$JS.API.DIRECT.GET.>")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Unsubscribe() }()
	r := open(t, nc)
	mustCreate(t, r, "s")
	if _, err := r.Get(patient(t), "s", ""); err != nil {
		t.Fatal(err)
	}
	if n, _, err := direct.Pending(); err != nil || n != 0 {
		t.Errorf("%d direct reads, %v", n, err)
	}
}

func TestOpeningWaitsForTheBucket(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := session.OpenRegistry(ended, nc, quiet()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	opened := make(chan error, 1)
	ctx := patient(t)
	go func() {
		r, err := session.OpenRegistry(ctx, nc, quiet())
		if err == nil {
			r.Close()
		}
		opened <- err
	}()
	create(t, nc)
	if err := <-opened; err != nil {
		t.Error(err)
	}
	create(t, nc) // again is no error
}

func TestTheCopyFollowsARestartAndARollback(t *testing.T) {
	srv := natstest.Start(t)
	r := create(t, connect(t, srv))
	kept := mustCreate(t, r, "kept")
	older := filepath.Join(t.TempDir(), "older")
	restart := func(stopped func()) {
		t.Helper()
		srv.Stop()
		stopped()
		srv.Start()
		if err := r.Current(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	restart(func() {
		if err := os.CopyFS(older, os.DirFS(srv.Dir())); err != nil {
			t.Fatal(err)
		}
	})
	eventually(t, "a connection", func() bool {
		// An answer that was lost with a connection never comes: do not wait for one long.
		ctx, cancel := context.WithTimeout(patient(t), 2*time.Second)
		defer cancel()
		_, err := r.Create(ctx, session.New("lost", "", nil, time.Now()))
		return err == nil || errors.Is(err, session.ErrExists)
	})
	kept.Owner = "lost too"
	if _, err := r.Update(patient(t), kept); err != nil {
		t.Fatal(err)
	}
	restart(func() {
		if err := errors.Join(os.RemoveAll(srv.Dir()), os.CopyFS(srv.Dir(), os.DirFS(older))); err != nil {
			t.Fatal(err)
		}
	})
	eventually(t, "what was lost is gone", func() bool {
		_, lost := r.Session("lost")
		got, ok := r.Session("kept")
		return !lost && ok && got.Owner == "owner" && got.Revision == kept.Revision
	})
	if all := r.Sessions(); len(all) != 1 {
		t.Errorf("all: %+v", all)
	}
}

func TestACopyIsNotCurrentWhileItsConnectionIsAway(t *testing.T) {
	srv := natstest.Start(t)
	var l natstest.Link
	cut, other := create(t, connect(t, srv, nats.SetCustomDialer(&l))), open(t, connect(t, srv))
	rec := mustCreate(t, cut, "s")
	if err := cut.Current(patient(t)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		l.Cut()
		rec.Owner += "x"
		var err error
		if rec, err = other.Update(patient(t), rec); err != nil {
			t.Fatal(err)
		}
		// Until the client notices, it cannot know.
		eventually(t, "the cut is noticed", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			err := cut.Current(ctx)
			return errors.Is(err, session.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded)
		})
		l.Heal()
		if err := cut.Current(patient(t)); err != nil {
			t.Fatal(err)
		}
		if got, _ := cut.Session("s"); got.Revision != rec.Revision {
			t.Fatalf("the copy is current and has revision %d, not %d", got.Revision, rec.Revision)
		}
	}
}

func TestRecordsThatCannotBeReadAreIgnored(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	r := create(t, nc)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"a": "{", "b": `{"session":"c"}`, "c.d": `{"session":"c"}`} {
		if _, err := js.Publish(patient(t), "$KV."+session.Bucket+"."+key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	mustCreate(t, r, "good")
	other := open(t, nc)
	if all := other.Sessions(); len(all) != 1 || all[0].Session != "good" {
		t.Errorf("all: %+v", all)
	}
	if _, err := r.Get(patient(t), "b", ""); err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("asked for: %v", err)
	}
}
