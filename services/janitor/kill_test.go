package janitor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// A janitor that has duties of all kinds dies between any two of the changes that others can
// see: trims, deletes, copies, floors, ends, and records. The next one, which stood by or is
// started then, does the remaining changes and no others, and every hole in the log is explained.
func TestJanitor_KilledAtAnyChange(t *testing.T) {
	total := 0
	for n := 0; n < 3 && total < 20; n++ { // one that is held up may lose its lease before it has done all
		total = max(total, killedAfter(t, 1000, false))
	}
	if total < 20 {
		t.Fatalf("there are %d changes in all", total)
	}
	for n := range total {
		fresh := n%2 == 0
		t.Run(fmt.Sprintf("%d changes, next started afresh %t", n, fresh), func(t *testing.T) {
			t.Parallel()
			killedAfter(t, n, fresh)
		})
	}
}

// killedAfter has a janitor make so many changes, and another one the rest. It returns
// how many there were.
func killedAfter(t *testing.T, changes int, fresh bool) int {
	t.Helper()
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 4, MaxAge: -1}
	network := newNetwork(t, srv)
	cfg := idle()
	cfg.Lease = 2 * time.Second // the end of a connection ends it sooner
	cfg.ClosedGrace, cfg.TombstoneTTL = 0, 0
	first := beginAt(t, network.url, settings, cfg, impatient, onlySweeps)
	cfg.Interval = quick().Interval
	second := beginAt(t, srv.URL(), settings, cfg, impatient)
	network.breakAfter(changes)
	t.Cleanup(func() {
		if t.Failed() {
			for _, r := range []*running{first, second} {
				r.explain(t)
			}
		}
	})
	all := fillForAll(t, second)

	made := 0
	takeOver := func() {
		if first == nil {
			return
		}
		made = int(network.wrote.Load())
		first.kill()
		if first = nil; fresh {
			second.kill()
			second = beginAt(t, srv.URL(), settings, cfg, impatient)
		}
		second.acts(t)
	}
	until := func(settled func(*running) error) {
		t.Helper()
		var swept error
		waittest.NoError(t, func() error {
			if network.broken() {
				takeOver()
			}
			if first != nil { // it does nothing by itself, also about half-done changes when it looks settled
				swept = first.sweeper.sweepNow(time.Second).err
				if term := first.leases.Term(0); term != nil {
					first.registrar.round(term.Ctx)
				}
			}
			if err := settled(second); err != nil {
				return fmt.Errorf("%w; the first one acts: %t, the second one: %t", errors.Join(err, swept), first != nil && first.leases.Acts(0), second.leases.Acts(0))
			}
			return nil
		})
	}
	until(all.trimmed(t))
	second.wantTrimmed(t, "quiet", "a", 0, "")
	second.wantTrimmed(t, "over", "a", all.over[0], eventlog.Trimmed)
	second.wantTrimmed(t, "over", "b", all.over[1], eventlog.Trimmed)
	second.wantTrimmed(t, "cleared", "a", all.cleared[2], eventlog.Cleared)
	waittest.NoError(t, func() error {
		if first == nil || network.broken() {
			return nil
		}
		if err := second.trySet(t, func(s *eventlog.Settings) { s.MaxAge = time.Second }); !network.broken() {
			return err
		}
		return nil // it may have broken before the answer came
	})
	if network.broken() {
		takeOver()
		second.set(t, func(s *eventlog.Settings) { s.MaxAge = time.Second })
	}
	until(all.expired(t))
	takeOver()
	waittest.NoError(t, func() error { return all.expired(t)(second) })
	second.exact(t)
	second.wantCounts(t)
	return made
}

// explain logs the state and the duties of a janitor, and the entries of the log. It logs nothing for a nil
// janitor.
func (r *running) explain(t *testing.T) {
	if r == nil {
		return
	}
	inLog, complete, records := map[string]ledger.LoggedSession{}, false, r.registry.Sessions()
	r.partitions[0].With(func(l *ledger.Ledger) {
		complete = l.Complete
		l.Logged(inLog)
	})
	t.Logf("complete %t, in the log %+v\nrecords %+v\nduties %+v", complete, inLog, records,
		ledger.Duties(records, inLog, r.cfg.nameKept, r.registrar.patience, r.registrar.now(), r.registrar.clock()))
	ctx, cancel := context.WithTimeout(context.Background(), waittest.Timeout)
	defer cancel()
	state, err := r.b.Log.Look(ctx, 0)
	t.Logf("%+v, %v", state, err)
	for seq := state.First; seq <= state.Last && err == nil; seq++ {
		if e, err := r.b.Log.At(ctx, 0, seq); err == nil {
			t.Logf("%d %s %s", seq, e.Subject, e.Time)
		}
	}
}

// everything has the sessions that give a janitor duties of all kinds.
type everything struct {
	lives                       map[string]string // by session
	quiet, over, cleared, after []uint64
	clear                       uint64
}

func fillForAll(t *testing.T, r *running) everything {
	t.Helper()
	all := everything{lives: map[string]string{}}
	for _, name := range []string{"quiet", "over", "cleared", "done", "dying"} {
		all.lives[name] = r.create(t, name).Life
	}
	all.quiet = r.publish(t, "quiet", "a", 2)
	for range 3 {
		all.over = append(all.over, r.publish(t, "over", "a", 1)...)
		all.over = append(all.over, r.publish(t, "over", "b", 1)...)
	}
	r.publish(t, "done", "a", 2)
	for _, stream := range []string{"a", ""} {
		r.end(t, "done", stream)
	}
	r.publish(t, "dying", "a", 1)
	seal := event.Subject{Session: "dying", Life: r.life("dying"), Kind: event.Seal}
	must.Value(r.b.Conn.RequestMsg(nats.NewMsg(seal.String()), waittest.Timeout))(t)
	all.cleared = r.publish(t, "cleared", "a", 3)
	all.clear = r.mark(t, event.Clear, "cleared", "")
	all.after = r.publish(t, "cleared", "a", 1)
	return all
}

// trimmed returns a check for the final state as long as no event is too old.
func (all everything) trimmed(t *testing.T) func(*running) error {
	return func(r *running) (err error) {
		for name, want := range map[string][]uint64{"quiet": all.quiet, "over": all.over[2:], "cleared": append([]uint64{all.clear}, all.after...)} {
			err = errors.Join(err, wantSequences(r.stored(t, name, ""), want))
		}
		for _, name := range []string{"done", "dying"} {
			rec, there := r.registry.Session(name)
			page, readErr := r.b.Log.Read(t.Context(), eventlog.Query{Session: name, Life: all.lives[name], UpTo: 1000, MaxEvents: 9, MaxBytes: 1000})
			_, ended := r.b.Log.NewestSequence(t.Context(), event.Subject{Session: name, Life: all.lives[name], Kind: event.End})
			if !there && errors.Is(ended, eventlog.ErrNotFound) { // it is forgotten already
				rec.State, ended = session.Closed, nil
			}
			if err = errors.Join(err, readErr, ended); rec.State != session.Closed || len(page.Entries) > 0 {
				err = errors.Join(err, fmt.Errorf("%s is %s, with %d events", name, rec.State, len(page.Entries)))
			}
		}
		return err
	}
}

// expired returns a check for the final state when all events are too old: only the openings and births
// of the three open sessions and their streams stay.
func (all everything) expired(t *testing.T) func(*running) error {
	var want []string
	for name, streams := range map[string][]string{"quiet": {"a"}, "over": {"a", "b"}, "cleared": {"a"}} {
		want = append(want, event.Subject{Session: name, Kind: event.Open}.String())
		for _, stream := range streams {
			want = append(want, event.Subject{Session: name, Life: all.lives[name], Stream: stream, Kind: event.Birth}.String())
		}
	}
	slices.Sort(want)
	return func(r *running) error {
		js, err := jetstream.New(r.b.Conn)
		if err != nil {
			return err
		}
		stream, err := js.Stream(t.Context(), "MCP_0")
		if err != nil {
			return err
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			return err
		}
		var got []string
		for subject := range info.State.Subjects {
			got = append(got, subject)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			err = fmt.Errorf("the log has %v, want %v", got, want)
		}
		for name, life := range all.lives {
			rec, there := r.registry.Session(name)
			if open := name != "done" && name != "dying"; there != open || open && (rec.State != session.Open || rec.Life != life) {
				err = errors.Join(err, fmt.Errorf("%s is in the registry: %t, %+v", name, there, rec))
			}
		}
		return err
	}
}
