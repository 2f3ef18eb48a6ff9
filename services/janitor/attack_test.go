package janitor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/lease"
	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/metadata"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// kept is a copy of the files of a stream, or of all of them.
type kept struct {
	t        *testing.T
	from, to string
}

// keep copies the files of a stream as they are; none is all streams.
func keep(t *testing.T, srv *natstest.Server, stream string) kept {
	t.Helper()
	s := kept{t, filepath.Join(srv.Dir(), "jetstream", "$G", "streams", stream), filepath.Join(t.TempDir(), "kept")}
	srv.Stop()
	must.NoError(t, os.CopyFS(s.to, os.DirFS(s.from)))
	srv.Start()
	return s
}

// restore starts the server with the kept files.
func (s kept) restore(srv *natstest.Server) {
	s.t.Helper()
	srv.Stop()
	must.NoError(s.t, errors.Join(os.RemoveAll(s.from), os.CopyFS(s.from, os.DirFS(s.to))))
	srv.Start()
}

// actsAnew waits until a janitor that acted acts again, in another term.
func (r *running) actsAnew(t *testing.T, before *lease.Term) {
	t.Helper()
	waittest.Until(t, "it acts again", func() bool { now := r.leases.Term(0); return now != nil && now != before })
}

// A server that has lost its newest events gives their sequences to others, before a
// generation shows it, when a publisher writes straight to it.
func TestTrim_SequencesUsedAgain(t *testing.T) {
	srv, settings := natstest.StartParallel(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 2}
	network := newNetwork(t, srv)
	r := beginAt(t, network.url, settings, idle(), deletesNothing)
	r.publish(t, "s", "a", 3)
	earlier := r.leases.Term(0)
	old := keep(t, srv, "")
	waittest.NoError(t, func() error { _, err := r.b.Log.Look(t.Context(), 0); return err })
	r.actsAnew(t, earlier)
	r.publish(t, "s", "a", 7)
	r.announce(t, 0)

	term := r.leases.Term(0)
	network.lose("$JS.API.STREAM.UPDATE")
	old.restore(srv)
	js := natstest.JetStream(t, srv.Connect())
	var direct []string // as many as the ledger has seen trimmed, and more
	for i := range 10 {
		direct = append(direct, fmt.Sprint("direct", i))
		must.Value(js.Publish(t.Context(), event.Subject{Session: direct[i], Stream: "a"}.String(), []byte(`{"jsonrpc":"2.0","method":"n"}`)))(t)
	}
	r.actsAnew(t, term)
	waittest.NoError(t, func() error { return r.sweeper.sweepNow(waittest.Timeout).err }) // a sweep that was completed
	waittest.NoError(t, func() error {
		if err := r.deleter.all(r.term(t), r.partitions[0]); !errors.Is(err, follow.ErrChanged) {
			return fmt.Errorf("the deletes end with %w", err)
		}
		return nil
	})
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
	waittest.NoError(t, func() error {
		if done := r.sweeper.sweepNow(waittest.Timeout); done.err != nil {
			return done.err
		}
		if err := r.deleter.all(r.term(t), r.partitions[0]); err != nil {
			return err
		}
		if n := len(r.stored(t, "s", "a")); n != 2 {
			return fmt.Errorf("%d events of the session are left", n)
		}
		return nil
	})
	wantAll()
}

// A name may have been given again while the janitor was disconnected, and in its copy
// of the registry the session is still one that was closed long ago.
func TestRegistry_OldRecord(t *testing.T) {
	srv := natstest.StartParallel(t)
	network := newNetwork(t, srv)
	cfg := idle()
	cfg.ClosedGrace, cfg.TombstoneTTL = 0, 0
	r := beginAt(t, network.url, eventlog.Settings{Partitions: 1, MaxAge: time.Second}, cfg)
	old := r.create(t, "s")
	r.end(t, "s", "")
	waittest.NoError(t, func() error {
		r.sweepNow(t)
		if state, err := r.b.Log.Look(t.Context(), 0); err != nil || state.Entries > 0 {
			return fmt.Errorf("%d entries are left, %w", state.Entries, err)
		}
		return nil
	})

	r.set(t, func(s *eventlog.Settings) { s.MaxAge = time.Hour })
	term := r.leases.Term(0)
	network.lose("$JS.API.CONSUMER.CREATE.KV_MCP_SESSIONS")
	srv.Stop()
	srv.Start()
	r.actsAnew(t, term)
	others := must.Value(backend.Open(t.Context(), backend.Config{NATSURL: srv.URL()}, "others", slog.New(slog.DiscardHandler)))(t)
	defer others.Close()
	rec := must.Value(others.Sessions.Get(t.Context(), "s"))(t)
	must.NoError(t, others.Sessions.Remove(t.Context(), rec))
	again := must.Value(others.Sessions.Create(t.Context(), session.New("s", "", nil, time.Now())))(t)
	ack := must.Value(others.Log.Publish(t.Context(), eventlog.Event{Session: "s", Life: again.Life, Stream: "a", Data: []byte(`{}`)}))(t)
	r.followed(t, ack)
	if copied, _ := r.b.Sessions.Session("s"); copied.Life != old.Life || copied.State != session.Closed {
		t.Fatalf("the copy is not old: %+v", copied)
	}
	if done := r.sweeper.sweepNow(waittest.Timeout); done.err != nil || len(toDelete(r.partitions))+len(done.removed) > 0 {
		t.Errorf("%v is left and %v removed, %v", toDelete(r.partitions), done.removed, done.err)
	}
	network.lose("")
	waittest.Until(t, "the copy is new", func() bool { return r.life("s") == again.Life })
	r.everything(t)
	must.NoError(t, wantSequences(r.stored(t, "s", "a"), []uint64{ack.Sequence}))
}

// The janitor's clock is set: removals that are due after a time are made earlier or later, and no
// others are made.
func TestClock_Jumps(t *testing.T) {
	t.Parallel()
	cfg := idle()
	cfg.ClosedGrace = time.Hour
	var clock aheadClock
	r := beginAt(t, natstest.Start(t).URL(), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 4, MaxAge: 20_000 * time.Hour}, cfg, onlySweeps, clock.ofLedgers)
	quiet := r.publish(t, "quiet", "a", 2)
	r.create(t, "closed")
	closed := r.publish(t, "closed", "a", 3)
	r.end(t, "closed", "")
	busy := r.publish(t, "busy", "a", 4)
	for _, jump := range []time.Duration{-48 * time.Hour, 30 * time.Minute, -10_000 * time.Hour, 0, 2 * time.Hour, -48 * time.Hour, 10_000 * time.Hour, 0} {
		clock.ahead.Store(int64(jump))
		busy = append(busy, r.publish(t, "busy", "a", 2)...) // the ledger knows the time again
		r.sweepNow(t)
		waittest.NoError(t, func() error { return wantSequences(r.stored(t, "busy", "a"), busy[len(busy)-4:]) })
		for name, want := range map[string][]uint64{"quiet": quiet, "closed": closed} {
			if err := wantSequences(r.stored(t, name, "a"), want); err != nil {
				t.Errorf("%s, after a jump of %s: %v", name, jump, err)
			}
		}
		r.wantTrimmed(t, "quiet", "a", 0, "")
		r.wantTrimmed(t, "busy", "a", busy[len(busy)-5], eventlog.Trimmed)
		r.wantCounts(t)
	}
	clock.ahead.Add(int64(2 * time.Hour))
	r.sweepNow(t)
	r.wantTrimmed(t, "closed", "a", closed[2], eventlog.Trimmed)
	r.wantTrimmed(t, "quiet", "a", 0, "")
}

// An operator gives a partition limits by which JetStream removes entries itself.
func TestLimits_OfSomebodyElse(t *testing.T) {
	srv := natstest.StartParallel(t)
	r := begin(t, srv, eventlog.Settings{Partitions: 1}, quick())
	js := natstest.JetStream(t, srv.Connect())
	for what, edit := range map[string]func(*jetstream.StreamConfig){
		"age":      func(cfg *jetstream.StreamConfig) { cfg.MaxAge, cfg.Duplicates = time.Minute, time.Minute },
		"count":    func(cfg *jetstream.StreamConfig) { cfg.MaxMsgs = 1000 },
		"subject":  func(cfg *jetstream.StreamConfig) { cfg.MaxMsgsPerSubject = 1000 },
		"discard":  func(cfg *jetstream.StreamConfig) { cfg.Discard = jetstream.DiscardOld },
		"refuse":   func(cfg *jetstream.StreamConfig) { cfg.MaxMsgsPerSubject, cfg.DiscardNewPerSubject = 1000, true },
		"interest": func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.InterestPolicy },
	} {
		had := must.Value(js.Stream(t.Context(), "MCP_0"))(t).CachedInfo().Config
		cfg := had
		edit(&cfg)
		must.Value(js.UpdateStream(t.Context(), cfg))(t)
		waittest.NoError(t, func() error {
			stream, err := js.Stream(t.Context(), "MCP_0")
			if now := stream.CachedInfo().Config; err == nil && (now.MaxAge != had.MaxAge || now.Duplicates != had.Duplicates || now.MaxMsgs != had.MaxMsgs || now.MaxMsgsPerSubject != had.MaxMsgsPerSubject || now.Discard != had.Discard || now.DiscardNewPerSubject != had.DiscardNewPerSubject || now.Retention != had.Retention) {
				err = fmt.Errorf("%s: the partition is %+v", what, now)
			}
			return err
		})
	}
	r.publish(t, "s", "a", 1)
}

// Another program deletes an event while all services run.
func TestFollow_EventsDeletedByOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		replicas  int
		maxAbsent uint64
		more      uint64 // sequences that may count as damage after the deleted entry
	}{
		"a few holes":                        {1, 100, 0},
		"too many to list":                   {1, 0, 0},
		"too many to list, and in a cluster": {3, 0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			var srv *natstest.Server
			if test.replicas > 1 {
				srv = natstest.StartCluster(t).Servers[0]
			} else {
				srv = natstest.StartParallel(t)
			}
			r := beginAt(t, srv.URL(), eventlog.Settings{Partitions: 1, Replicas: test.replicas, MaxBytes: 1 << 30, MaxEventsPerStream: 2}, quick(),
				func(s *Service) { s.partitions[0].MaxAbsent = test.maxAbsent })
			quiet := append(r.publish(t, "s", "quiet", 2), r.publish(t, "s", "still", 2)...)
			r.publish(t, "s", "busy", 5)
			r.everything(t) // the trimmed entries are deleted
			stream := must.Value(natstest.JetStream(t, srv.Connect()).Stream(t.Context(), "MCP_0"))(t)
			wantDamaged := func(from, to uint64) {
				t.Helper()
				r.shows(t, 0, func(s eventlog.State) bool { return s.Checked() && s.Damaged >= from && s.Damaged <= to })
			}
			wantDamaged(0, 0)
			for _, deleted := range []uint64{quiet[1], quiet[3]} { // the second one while the first is damage already
				must.NoError(t, stream.DeleteMsg(t.Context(), deleted))
				wantDamaged(deleted, deleted+test.more)
			}
		})
	}
}

// A restarted server reads its blocks again, and one of them may be damaged.
func TestFollow_MissingEvents(t *testing.T) {
	srv := natstest.StartParallel(t)
	network := newNetwork(t, srv)
	r := beginAt(t, network.url, eventlog.Settings{Partitions: 1}, idle())
	quiet := r.publish(t, "s", "quiet", 2)
	r.publish(t, "s", "busy", 3)

	term := r.leases.Term(0)
	network.lose("$JS.API.STREAM.INFO.MCP_0")
	srv.Stop()
	srv.Start()
	js := natstest.JetStream(t, srv.Connect())
	stream := must.Value(js.Stream(t.Context(), "MCP_0"))(t)
	must.NoError(t, stream.DeleteMsg(t.Context(), quiet[1]))
	network.lose("")
	r.actsAnew(t, term)
	waittest.NoError(t, func() error {
		r.sweepNow(t)
		if state, err := r.b.Log.Look(t.Context(), 0); err != nil || !state.Checked() || state.Damaged != quiet[1] {
			return fmt.Errorf("checked %t, damaged %d, %w", state.Checked(), state.Damaged, err)
		}
		return nil
	})
	if !strings.Contains(r.log.String(), "entries are missing that nothing explains") {
		t.Error("it is not logged")
	}
}

// The registry and an opening are lost, and a client opens the session again: a client that still
// publishes to the earlier life is refused from then on, and the events of that life are removed.
func TestSession_NameUsedAgain(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.ClosedGrace = 0
	r := begin(t, natstest.Start(t), eventlog.Settings{Partitions: 1}, cfg)
	js := natstest.JetStream(t, r.b.Conn)
	kv := must.Value(js.KeyValue(t.Context(), session.Bucket))(t)
	before := r.create(t, "s")
	r.publish(t, "s", "a", 2)
	o := must.Value(r.b.Log.Opening(t.Context(), "s"))(t)
	must.NoError(t, errors.Join(r.b.Log.Delete(t.Context(), 0, o.Sequence), kv.Delete(t.Context(), event.Token("s"))))
	again := r.create(t, "s")
	late := eventlog.Event{Session: "s", Life: before.Life, Stream: "a", Data: []byte(`{}`)}
	waittest.NoError(t, func() error {
		if _, err := r.b.Log.Publish(t.Context(), late); !errors.Is(err, eventlog.ErrClosed) {
			return fmt.Errorf("the earlier life takes events: %w", err)
		}
		return nil
	})
	waittest.NoError(t, func() error {
		if page, err := r.b.Log.Read(t.Context(), eventlog.Query{Session: "s", Life: before.Life, UpTo: 1000, MaxEvents: 1, MaxBytes: 1000}); err != nil || len(page.Entries) > 0 {
			return fmt.Errorf("%+v, %w", page, err)
		}
		return nil
	})
	if rec, err := r.b.Sessions.Get(t.Context(), "s"); err != nil || rec.Life != again.Life || rec.State != session.Open {
		t.Errorf("%+v, %v", rec, err)
	}
	if all := r.publish(t, "s", "a", 1); !slices.Equal(r.stored(t, "s", "a"), all) {
		t.Errorf("%d is not stored", all)
	}
}

// backup is a stream as `nats stream backup` has it.
type backup struct {
	Config, State json.RawMessage
	chunks        [][]byte
}

// call asks JetStream's API.
func call(t *testing.T, nc *nats.Conn, subject string, request []byte) (answer []byte) {
	t.Helper()
	msg := must.Value(nc.Request(subject, request, waittest.Timeout))(t)
	if bytes.Contains(msg.Data, []byte(`"error"`)) {
		t.Fatalf("%s: %s", subject, msg.Data)
	}
	return msg.Data
}

func takeBackup(t *testing.T, nc *nats.Conn, stream string) (b backup) {
	t.Helper()
	sub := must.Value(nc.SubscribeSync(nc.NewInbox()))(t)
	must.NoError(t, json.Unmarshal(call(t, nc, "$JS.API.STREAM.SNAPSHOT."+stream, fmt.Appendf(nil, `{"deliver_subject":%q}`, sub.Subject)), &b))
	for {
		msg := must.Value(sub.NextMsg(waittest.Timeout))(t)
		if len(msg.Data) == 0 {
			must.NoError(t, sub.Unsubscribe())
			return b
		}
		b.chunks = append(b.chunks, msg.Data)
		_ = msg.Respond(nil) // the last one awaits no answer
	}
}

// restore restores the stream, in place of the existing one.
func (b backup) restore(t *testing.T, nc *nats.Conn, stream string) {
	t.Helper()
	call(t, nc, "$JS.API.STREAM.DELETE."+stream, nil)
	var to struct {
		DeliverSubject string `json:"deliver_subject"`
	}
	must.NoError(t, json.Unmarshal(call(t, nc, "$JS.API.STREAM.RESTORE."+stream, fmt.Appendf(nil, `{"config":%s,"state":%s}`, b.Config, b.State)), &to))
	for _, chunk := range append(b.chunks, nil) {
		call(t, nc, to.DeliverSubject, chunk)
	}
}

// A partition is restored from a backup while all services run: JetStream creates the stream again, with its metadata.
// It is in another generation at once, before a janitor writes that down.
func TestRestore_PartitionOfARunningServer(t *testing.T) {
	t.Parallel()
	alone := func(t *testing.T) (*natstest.Server, int) { return natstest.Start(t), 1 }
	for name, test := range map[string]struct {
		start func(*testing.T) (*natstest.Server, int)
		made  string // the key in the backup
		again bool   // the server is started again after the backup
	}{
		"alone":                 {alone, "rejoin.made", false},
		"of an earlier version": {alone, "other.made", false},
		"of an earlier run":     {alone, "rejoin.made", true},
		"clustered":             {func(t *testing.T) (*natstest.Server, int) { return natstest.StartCluster(t).Servers[0], 3 }, "rejoin.made", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, replicas := test.start(t)
			network, nc := newNetwork(t, srv), srv.Connect()
			r := beginAt(t, network.url, eventlog.Settings{Partitions: 1, Replicas: replicas, MaxBytes: 1 << 30}, idle()) // two of them fit on a server: the deleted one counts for a moment
			kept := r.publish(t, "s", "a", 3)
			js := natstest.JetStream(t, nc)
			notes := func(before string) {
				t.Helper()
				waittest.Until(t, "the janitor has written down which stream it is", func() bool {
					stream, err := js.Stream(t.Context(), "MCP_0")
					return err == nil && stream.CachedInfo().Config.Metadata["rejoin.made"] > before
				})
			}
			notes("")
			look := func() (eventlog.State, event.TagParts) {
				state := must.Value(r.b.Log.Look(t.Context(), 0))(t)
				return state, event.TagParts{Origin: state.Origin, Generation: state.Generation().ID, Session: "s", Stream: "a"}
			}
			_, ofKept := look()
			older := takeBackup(t, nc, "MCP_0")
			if test.again {
				srv.Stop()
				srv.Start()
				srv.AwaitConn(nc)
				srv.AwaitConn(r.b.Conn)
			}
			lost := r.publish(t, "s", "a", 3)
			before, ofLost := look()
			network.lose("$JS.API.STREAM.INFO.MCP_0") // or the janitor may create the partition before it is back
			older.Config = bytes.ReplaceAll(older.Config, []byte("rejoin.made"), []byte(test.made))
			older.restore(t, nc, "MCP_0")
			network.lose("$JS.API.STREAM.UPDATE.MCP_0")
			waittest.NoError(t, func() error { // the log may not be read yet
				ack, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: "other", Stream: "a", Data: []byte(`{}`)})
				if err == nil && ack.Sequence <= lost[2] {
					err = fmt.Errorf("the log ends at %d", ack.Sequence)
				}
				return err
			})
			wantLost := func() {
				t.Helper()
				state := must.Value(r.b.Log.Look(t.Context(), 0))(t)
				check := func(sequence uint64, place event.TagParts, want event.Verdict) {
					t.Helper()
					id := event.ID{Stream: "a", Tag: place.Tag(), Sequence: sequence}
					if got, common := event.Resolve(id, place, state.Generations); got != want || got == event.RolledBack && common < kept[2] {
						t.Errorf("sequence %d: verdict %d, common %d; generations %v", sequence, got, common, state.Generations)
					}
				}
				check(kept[1], ofKept, event.Good)
				check(lost[0], ofLost, event.RolledBack)
				check(lost[2], ofLost, event.RolledBack)
			}
			wantLost()
			network.lose("")
			notes(metadata.Made(before.Created))
			wantLost()
		})
	}
}
