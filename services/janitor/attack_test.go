package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

// store is a copy of the files of a stream, or of all of them.
type store struct {
	t        *testing.T
	from, to string
}

// keep copies the files of a stream as they are; none is all streams.
func keep(t *testing.T, srv *natstest.Server, stream string) store {
	t.Helper()
	s := store{t, filepath.Join(srv.Dir(), "jetstream", "$G", "streams", stream), filepath.Join(t.TempDir(), "kept")}
	srv.Stop()
	if err := os.CopyFS(s.to, os.DirFS(s.from)); err != nil {
		t.Fatal(err)
	}
	srv.Start()
	return s
}

// restore starts the server with what was kept.
func (s store) restore(srv *natstest.Server) {
	s.t.Helper()
	srv.Stop()
	if err := errors.Join(os.RemoveAll(s.from), os.CopyFS(s.from, os.DirFS(s.to))); err != nil {
		s.t.Fatal(err)
	}
	srv.Start()
}

// actsAnew waits until a janitor that acted acts again, in another term.
func (r *running) actsAnew(t *testing.T, before *term) {
	t.Helper()
	eventually(t, func() error {
		if now := r.charge.Load(); now == nil || now == before {
			return errors.New("it does not act again")
		}
		return nil
	})
}

// A server that has lost its newest events gives their sequences to others, before there
// is a generation that says so when somebody publishes straight to it.
func TestOtherEventsWithTheSequencesOfLostOnesAreNotDeleted(t *testing.T) {
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	network := newNetwork(t, srv)
	r := beginAt(t, network.url, settings, idle())
	r.onlySweeps()
	r.acts(t)
	r.publish(t, "s", "a", 3)
	earlier := r.charge.Load()
	old := keep(t, srv, "")
	eventually(t, func() error { _, err := r.b.Log.Look(t.Context(), 0); return err })
	r.actsAnew(t, earlier)
	r.publish(t, "s", "a", 7)
	if rest, err := r.sweeper.plan(t.Context(), r.partitions[0]); err != nil || rest == nothingLeft {
		t.Fatal(rest, err)
	}

	term := r.charge.Load()
	network.lose("$JS.API.STREAM.UPDATE")
	old.restore(srv)
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	var direct []string // as many as the ledger has seen go, and more
	for i := range 10 {
		direct = append(direct, fmt.Sprint("direct", i))
		if _, err := js.Publish(t.Context(), "mcp.0."+direct[i]+".a", []byte(`{"jsonrpc":"2.0","method":"n"}`)); err != nil {
			t.Fatal(err)
		}
	}
	r.actsAnew(t, term)
	r.sweeper.sweepNow(100 * time.Millisecond)
	wantAll := func() {
		t.Helper()
		for _, name := range direct {
			if n := len(r.stored(t, name, "a")); n != 1 {
				t.Errorf("%d events of %s are left", n, name)
			}
		}
	}
	wantAll()
	network.lose("")
	eventually(t, func() error {
		if done := r.sweeper.sweepNow(patience); done.err != nil {
			return done.err
		}
		if n := len(r.stored(t, "s", "a")); n != 2 {
			return fmt.Errorf("%d events of the session are left", n)
		}
		return nil
	})
	wantAll()
}

// A name may have been given again while the janitor was away, and its copy of the
// registry still says that the session was closed long ago.
func TestASessionIsNotRemovedForAnOldRecord(t *testing.T) {
	srv := natstest.Start(t)
	network := newNetwork(t, srv)
	cfg := idle()
	cfg.ClosedGrace, cfg.TombstoneTTL = 0, 0
	r := beginAt(t, network.url, eventlog.Settings{Partitions: 1}, cfg)
	r.acts(t)
	if _, err := r.b.Sessions.Create(t.Context(), session.New("s", "", nil, time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := session.Close(t.Context(), r.b.Sessions, r.b.Log, "s", "", false, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		r.sweepNow(t)
		return wantSequences(r.stored(t, "s", ""), nil)
	})

	term := r.charge.Load()
	network.lose("$JS.API.CONSUMER.CREATE.KV_MCP_SESSIONS")
	srv.Stop()
	srv.Start()
	r.actsAnew(t, term)
	others, err := session.OpenRegistry(t.Context(), srv.Connect(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	rec, err := others.Get(t.Context(), "s", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := others.Remove(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if _, err := others.Create(t.Context(), session.New("s", "", nil, time.Now())); err != nil {
		t.Fatal(err)
	}
	all := r.publish(t, "s", "a", 3)
	if done := r.sweeper.sweepNow(patience); !errors.Is(done.err, session.ErrUnavailable) || len(done.left) > 0 {
		t.Errorf("%v is doomed, %v", done.left, done.err)
	}
	network.lose("")
	eventually(t, func() error { return r.sweeper.sweepNow(patience).err })
	if err := wantSequences(r.stored(t, "s", "a"), all); err != nil {
		t.Error(err)
	}
}

// What a janitor has deleted is in no other book, should it die before its next sweep.
func TestTrimMarksThatTheServerHasLostAreWrittenAgainAtOnce(t *testing.T) {
	srv := natstest.Start(t)
	r := begin(t, srv, eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}, idle())
	r.onlySweeps()
	r.acts(t)
	earlier := r.charge.Load()
	old := keep(t, srv, "KV_"+TrimsBucket)
	eventually(t, func() error { _, err := r.b.Log.Look(t.Context(), 0); return err })
	r.actsAnew(t, earlier)
	all := r.publish(t, "s", "a", 5)
	r.sweepNow(t)
	term, want := r.charge.Load(), trimMarks(t, srv)
	if want["s"].UpTo != all[2] {
		t.Fatalf("%+v", want)
	}
	old.restore(srv)
	r.actsAnew(t, term)
	if got := trimMarks(t, srv); got["s"] != want["s"] {
		t.Errorf("the marks are %+v, want %+v", got, want)
	}
}

func TestABatchEndsWhenThePartitionIsMadeAnewUnderIt(t *testing.T) {
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1}, idle())
	all := r.publish(t, "s", "a", 3)
	before, _ := r.b.Log.State(0)
	todo := []doom{{all[0], &verdict{reason: SessionEvents}}, {all[1], &verdict{reason: SessionEvents}}}
	from := deleter{r.b.Log, 0, before.Created.Add(-time.Second)}
	for name, remove := range map[string]func(context.Context, deleter, []doom) ([]doom, error){"all": deleteAll, "in turn": deleteInTurn} {
		if done, err := remove(t.Context(), from, todo); !errors.Is(err, errMoved) || len(done) > 0 {
			t.Errorf("%s: %d were deleted, %v", name, len(done), err)
		}
	}
	if err := wantSequences(r.stored(t, "s", "a"), all); err != nil {
		t.Error(err)
	}
}

// Somebody sets the clock: what goes by it goes earlier or later, and nothing else does.
func TestAClockThatJumpsRemovesNothingThatALimitAllows(t *testing.T) {
	cfg := idle()
	cfg.ClosedGrace = time.Hour
	var off atomic.Int64
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 4}, cfg, func(s *Service) {
		for _, p := range s.partitions {
			p.now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
		}
	})
	r.onlySweeps()
	r.acts(t)
	quiet := r.publish(t, "quiet", "a", 2)
	if _, err := r.b.Sessions.Create(t.Context(), session.New("closed", "", nil, time.Now())); err != nil {
		t.Fatal(err)
	}
	closed := r.publish(t, "closed", "a", 3)
	if err := session.Close(t.Context(), r.b.Sessions, r.b.Log, "closed", "", false, 0); err != nil {
		t.Fatal(err)
	}
	busy := r.publish(t, "busy", "a", 4)
	over := false
	for _, jump := range []time.Duration{-48 * time.Hour, 30 * time.Minute, -10_000 * time.Hour, 0, 2 * time.Hour, -48 * time.Hour, 10_000 * time.Hour, 0} {
		off.Store(int64(jump))
		busy = append(busy, r.publish(t, "busy", "a", 2)...)
		r.sweepNow(t)
		mark, left := marks.Mark{}, closed
		if over = over || jump > cfg.ClosedGrace; over {
			mark, left = marks.Mark{Removed: closed[2], Reason: marks.Trimmed}, nil
		}
		eventually(t, func() error { return wantSequences(r.stored(t, "closed", "a"), left) })
		r.wantMark(t, "closed", "a", mark)
		for name, want := range map[string][]uint64{"quiet": quiet, "busy": busy[len(busy)-4:]} {
			if err := wantSequences(r.stored(t, name, "a"), want); err != nil {
				t.Errorf("%s, after a jump of %s: %v", name, jump, err)
			}
		}
		r.wantMark(t, "quiet", "a", marks.Mark{})
		r.wantMark(t, "busy", "a", marks.Mark{Removed: busy[len(busy)-5], Reason: marks.Trimmed})
		r.wantCounts(t)
	}
}
