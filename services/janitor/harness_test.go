package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/metric/metrictest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// logBuffer has the log lines of a janitor.
type logBuffer struct{ waittest.Buffer }

// end returns the last lines.
func (l *logBuffer) end() string {
	lines := strings.Split(l.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-maxLines):], "\n")
}

// maxLines is how much of a janitor's log a failing test shows.
const maxLines = 40

// running is a janitor at work.
type running struct {
	*Service
	env  daemon.Env
	b    *backend.Backend
	wall *aheadClock // of this janitor
	log  *logBuffer
	stop func() // idempotent
	// registry is a copy of it with all records, whatever the janitor keeps.
	registry *session.Registry
}

// quick is a configuration for tests. The interval is long enough to tell immediate
// actions from those of a sweep.
func quick() Config {
	return Config{
		JanitorAddr: "127.0.0.1:0", Interval: 50 * time.Millisecond, Lease: 15 * time.Second, // longer than a slow machine pauses
		SyncInterval: 10 * time.Millisecond, ClosedGrace: time.Hour, TombstoneTTL: 2 * time.Hour,
	}
}

func begin(t *testing.T, srv *natstest.Server, settings eventlog.Settings, cfg Config, prepare ...func(*Service)) *running {
	t.Helper()
	return beginAt(t, srv.URL(), settings, cfg, prepare...)
}

// beginAt starts a janitor that is prepared before it runs, and waits until it is ready: one that is alone acts then.
func beginAt(t *testing.T, url string, settings eventlog.Settings, cfg Config, prepare ...func(*Service)) *running {
	t.Helper()
	out, wall := &logBuffer{}, &aheadClock{}
	env := daemon.NewEnv(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	settings.Partitions = cmp.Or(settings.Partitions, 2)
	b := must.Value(backend.Create(t.Context(), backend.Config{NATSURL: url, Now: wall.now}, "janitor", settings, env.Log))(t)
	s := must.Value(New(cfg, b, env))(t)
	registry := must.Value(session.OpenRegistry(t.Context(), b.Log, env.Log))(t)
	for _, f := range prepare {
		f(s)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r := &running{Service: s, env: env, b: b, wall: wall, log: out, registry: registry}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, nats.ErrConnectionClosed) { // that of one that was killed
			t.Errorf("Run: %v", err)
		}
		registry.Close()
		b.Close()
	})
	t.Cleanup(r.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.end())
		}
	})
	waittest.NoError(t, s.complete)
	return r
}

// sweepNow has the sweeper sweep, if a sweep begins in time.
func (w *sweeper) sweepNow(patience time.Duration) swept {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return w.sweepOnce(ctx)
}

// impatient has the registrar end a life soon after its seal.
func impatient(s *Service) { s.registrar.patience = time.Millisecond }

// onlySweeps has sessions trimmed by sweeps alone, until the first one.
func onlySweeps(s *Service) {
	for _, p := range s.partitions {
		p.With(func(l *ledger.Ledger) { l.Alarm = ledger.Alarm{} })
	}
}

// announce stores the trims of a partition by the policy, and waits until the ledger has them.
func (r *running) announce(t *testing.T, p int) {
	t.Helper()
	must.NoError(t, r.sweeper.announce(r.leases.Term(p).Ctx, r.partitions[p], false, map[ledger.Cause]int{}))
	r.partitions[p].AwaitRequired(t.Context())
}

// messageBytes is the size of the messages that publish stores.
const messageBytes = 52

// life returns the life of a session that is in the registry, or the empty one.
func (r *running) life(session string) string {
	rec, ok := r.b.Sessions.Session(session)
	if !ok && !r.b.Sessions.Has(r.b.Log.Partition(session)) {
		rec, _ = r.b.Sessions.Get(context.Background(), session) // of none, it is the empty one
	}
	return rec.Life
}

// publish stores events of a stream and returns their sequences. It lets the ledger
// follow each, so that none is removed before the ledger saw it.
func (r *running) publish(t *testing.T, session, stream string, n int) []uint64 {
	t.Helper()
	var all []uint64
	for i := range n {
		ack := must.Value(r.b.Log.Publish(t.Context(), eventlog.Event{Session: session, Life: r.life(session), Stream: stream, Data: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n","params":{"i":%06d}}`, i)}))(t)
		all = append(all, ack.Sequence)
		r.followed(t, ack)
	}
	return all
}

// followed waits until the ledger has an event, if this janitor keeps that.
func (r *running) followed(t *testing.T, ack eventlog.Ack) {
	t.Helper()
	if kept, _ := r.keepings[ack.Partition].state(); !kept {
		return
	}
	if !r.partitions[ack.Partition].Await(waittest.Context(t), func(l *ledger.Ledger) bool { return l.Through >= ack.Sequence }) {
		t.Fatalf("the ledger does not get to %d", ack.Sequence)
	}
}

// shows waits until a look at a partition shows a state.
func (r *running) shows(t *testing.T, p int, ok func(eventlog.State) bool) {
	t.Helper()
	waittest.NoError(t, func() error {
		state, err := r.b.Log.Look(t.Context(), p)
		if err == nil && !ok(state) {
			err = fmt.Errorf("partition %d is %+v", p, state)
		}
		return err
	})
}

// exact waits until the ledgers are exact.
func (r *running) exact(t *testing.T) {
	t.Helper()
	ctx := waittest.Context(t)
	for _, p := range r.partitions {
		if !p.Await(ctx, (*ledger.Ledger).Exact) {
			t.Fatalf("the ledger of partition %d does not become exact", p.Number)
		}
	}
}

// mark stores a control entry, and returns its sequence.
func (r *running) mark(t *testing.T, kind event.Kind, session, stream string) uint64 {
	t.Helper()
	life, p := r.life(session), r.b.Log.Partition(session)
	do := r.b.Log.EndStream
	if kind == event.Clear {
		do = r.b.Log.ClearStream
	}
	must.NoError(t, do(t.Context(), session, life, stream))
	return must.Value(r.b.Log.NewestSequence(t.Context(), event.Subject{Partition: p, Session: session, Life: life, Stream: stream, Kind: kind}))(t)
}

// create opens a session.
func (r *running) create(t *testing.T, name string) session.Record {
	t.Helper()
	return must.Value(r.b.Sessions.Create(t.Context(), session.New(name, "", nil, time.Now())))(t)
}

// end ends a session, or a stream of it, and waits for the ledger to follow.
func (r *running) end(t *testing.T, name, stream string) {
	t.Helper()
	must.NoError(t, r.b.Sessions.End(t.Context(), name, stream, false))
	p := r.b.Log.Partition(name)
	state := must.Value(r.b.Log.Look(t.Context(), p))(t)
	r.followed(t, eventlog.Ack{Partition: p, Sequence: state.Last})
}

// stored returns the sequences of the log's entries of a session's life and stream, but
// for births and trims.
func (r *running) stored(t *testing.T, session, stream string) []uint64 {
	t.Helper()
	var page eventlog.Page
	waittest.NoError(t, func() error { // a request right after a restart ends when the log notices the restart
		state, err := r.b.Log.Look(t.Context(), r.b.Log.Partition(session))
		if err == nil {
			page, err = r.b.Log.Read(t.Context(), eventlog.Query{Session: session, Life: r.life(session), Stream: stream, UpTo: state.Last, MaxEvents: 100_000, MaxBytes: 1 << 30})
		}
		return err
	}, eventlog.ErrUnavailable)
	var all []uint64
	for _, e := range page.Entries {
		all = append(all, e.Sequence)
	}
	if stream == "" {
		all = append(all, r.controlsOf(t, session)...)
		slices.Sort(all)
	}
	return all
}

// subjects returns those that the log has of a life.
func (r *running) subjects(t *testing.T, session, life string) (all []event.Subject) {
	t.Helper()
	of := event.Subject{Partition: r.b.Log.Partition(session), Session: session, Life: life}
	js := natstest.JetStream(t, r.b.Conn)
	var info *jetstream.StreamInfo
	waittest.NoError(t, func() error {
		stream, err := js.Stream(t.Context(), fmt.Sprint("MCP_", of.Partition))
		if err == nil {
			info, err = stream.Info(t.Context(), jetstream.WithSubjectFilter(of.Filter()))
		}
		return err
	})
	for text := range info.State.Subjects {
		if s, err := event.ParseSubject(text); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// controlsOf returns the sequences of the last control entries of a life on each subject, but
// for births and trims.
func (r *running) controlsOf(t *testing.T, session string) (all []uint64) {
	t.Helper()
	for _, s := range r.subjects(t, session, r.life(session)) {
		if s.Kind == event.Message || s.Kind == event.Birth || s.Kind == event.Trim {
			continue
		}
		seq, err := r.b.Log.NewestSequence(t.Context(), s)
		if errors.Is(err, eventlog.ErrNotFound) {
			continue // removed meanwhile
		}
		must.NoError(t, err)
		all = append(all, seq)
	}
	return all
}

// wantTrimmed waits until both the log and the ledger show that a stream's events were removed up to a
// sequence, 0 for none.
func (r *running) wantTrimmed(t *testing.T, name, stream string, upTo uint64, reason eventlog.Reason) {
	t.Helper()
	waittest.NoError(t, func() error {
		p := r.b.Log.Partition(name)
		missing, _, err := r.b.Log.LossesAfter(t.Context(), r.b.Log.Look, name, r.life(name), stream, 0, 0)
		if err != nil {
			return err
		}
		var newest eventlog.Loss
		for _, m := range missing {
			// Without a birth it is unknown which events the floor removed.
			if m.UpTo > newest.UpTo && (m.Reason != eventlog.Expired || reason == eventlog.Expired) {
				newest = m
			}
		}
		if newest.UpTo != upTo || newest.Reason != reason {
			return fmt.Errorf("the log says that %+v is missing of %s/%s, want %d, %s", missing, name, stream, upTo, reason)
		}
		if !r.leases.Acts(p) {
			return nil
		}
		removed := uint64(0)
		r.partitions[p].With(func(l *ledger.Ledger) {
			if a := l.Accounts[event.LifeKey(name, r.life(name))]; a != nil && a.Streams[stream] != nil {
				removed = a.Streams[stream].NewestRemoved
			}
		})
		if removed != upTo && reason != eventlog.Expired {
			return fmt.Errorf("the ledger says that %s/%s is removed up to %d, want %d", name, stream, removed, upTo)
		}
		return nil
	})
}

// term returns the context of the term in which a janitor acts, or fails the test.
func (r *running) term(t *testing.T) context.Context {
	t.Helper()
	term := r.leases.Term(0)
	if term == nil {
		t.Fatal("it does not act any more")
	}
	return term.Ctx
}

// wantCounts waits until the ledgers have as many entries as the log.
func (r *running) wantCounts(t *testing.T) {
	t.Helper()
	for _, p := range r.partitions {
		waittest.NoError(t, func() error { return r.compare(t, p) })
	}
}

// compare returns an error while a ledger has not as many entries as its partition.
func (r *running) compare(t *testing.T, p *follow.Partition) error {
	t.Helper()
	state, err := r.b.Log.Look(t.Context(), p.Number)
	if err != nil {
		return err
	}
	p.With(func(l *ledger.Ledger) {
		l.Advance(state.First, state.Last)
		if n := l.Entries(); !l.Exact() || l.Through != state.Last || n != state.Entries {
			err = fmt.Errorf("partition %d has %d entries up to %d, and its ledger, exact %t, %d up to %d", p.Number, state.Entries, state.Last, l.Exact(), n, l.Through)
		}
	})
	return err
}

// metric returns the value of a metric, or the number of observations of a histogram.
func (r *running) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return metrictest.Value(t, r.env.Metrics, "rejoin_janitor_"+name, labels...)
}

// counts waits until a metric has a value.
func (r *running) counts(t *testing.T, want float64, name string, labels ...string) {
	t.Helper()
	waittest.Value(t, name, func() float64 { return r.metric(t, name, labels...) }, func(got float64) bool { return got == want })
}

// copies waits until the copy of a session's record is as it should be, and returns it; of none it is empty.
func (r *running) copies(t *testing.T, name string, ok func(session.Record) bool) session.Record {
	t.Helper()
	return waittest.Value(t, "the copy of "+name, func() session.Record { rec, _ := r.b.Sessions.Session(name); return rec }, ok)
}

// none reports whether a session has no record.
func none(rec session.Record) bool { return rec.Session == "" }

// recreate has partition 0 created again, and returns its previous state.
func (r *running) recreate(t *testing.T) (old eventlog.State) {
	t.Helper()
	old, _ = r.b.Log.State(0)
	must.NoError(t, natstest.JetStream(t, r.b.Conn).DeleteStream(t.Context(), "MCP_0"))
	r.shows(t, 0, func(now eventlog.State) bool { return now.Origin != old.Origin })
	return old
}

func wantSequences(got, want []uint64) error {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("the log holds %v, want %v", got, want)
	}
	return nil
}

var midday = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// all deletes all due entries of a partition.
func (d *deleter) all(ctx context.Context, p *follow.Partition) error {
	for {
		if more, err := d.batch(ctx, p); err != nil || !more {
			return err
		}
	}
}
