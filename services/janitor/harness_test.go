package janitor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

// eventually waits until ok returns nil.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %s: %v", patience, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// passes has something done again while it fails with an error that passes; any other one
// is the test's.
func passes(t *testing.T, passing error, do func() error) {
	t.Helper()
	eventually(t, func() error {
		err := do()
		if err != nil && !errors.Is(err, passing) {
			t.Fatal(err)
		}
		return err
	})
}

// logBuffer is a log that a test can read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a janitor at work.
type running struct {
	*Service
	env  daemon.Env
	b    *backend.Backend
	log  *logBuffer
	stop func() // idempotent
}

// quick is a configuration for tests. The interval is long enough for what must
// happen at once to be told from what happens in a sweep.
func quick() Config {
	return Config{
		JanitorAddr: "127.0.0.1:0", Interval: 50 * time.Millisecond, Lease: 15 * time.Second, // longer than a slow machine pauses
		CloseAfter: time.Hour, ClosedGrace: time.Hour, TombstoneTTL: 2 * time.Hour,
	}
}

func begin(t *testing.T, srv *natstest.Server, settings eventlog.Settings, cfg Config) *running {
	t.Helper()
	return beginAt(t, srv.URL(), settings, cfg)
}

// beginAt starts a janitor that is prepared before it runs.
func beginAt(t *testing.T, url string, settings eventlog.Settings, cfg Config, prepare ...func(*Service)) *running {
	t.Helper()
	out := &logBuffer{}
	env := daemon.NewEnv(slog.New(slog.NewTextHandler(out, nil)))
	settings.Partitions = cmp.Or(settings.Partitions, 2)
	b, err := backend.Create(t.Context(), backend.Config{NATSURL: url}, "janitor", settings, env.Log)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, b, env)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(s)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r := &running{Service: s, env: env, b: b, log: out}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		b.Close()
	})
	t.Cleanup(r.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	eventually(t, s.complete)
	return r
}

// onlySweeps has sessions trimmed by sweeps alone, until the first one.
func (r *running) onlySweeps() {
	for _, p := range r.partitions {
		p.with(func(l *ledger) { l.alarm = alarm{} })
	}
}

// messageBytes is the size of what publish stores.
const messageBytes = 52

// publish stores events of a stream and returns their sequences. It lets the ledger
// follow each, so that none is removed before the ledger saw it.
func (r *running) publish(t *testing.T, session, stream string, n int) []uint64 {
	t.Helper()
	var all []uint64
	for i := range n {
		ack, err := r.b.Log.Publish(t.Context(), eventlog.Event{Session: session, Stream: stream, Data: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n","params":{"i":%06d}}`, i)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ack.Sequence)
		r.followed(t, ack)
	}
	return all
}

// followed waits until the ledger has an event.
func (r *running) followed(t *testing.T, ack eventlog.Ack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !r.partitions[ack.Partition].await(ctx, func(l *ledger) bool { return l.through >= ack.Sequence }) {
		t.Fatalf("the ledger does not get to %d", ack.Sequence)
	}
}

// exact waits until the ledgers are exact: a ledger that has begun anew answers late
// questions as well as it can.
func (r *running) exact(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, p := range r.partitions {
		if !p.await(ctx, (*ledger).exact) {
			t.Fatalf("the ledger of partition %d does not become exact", p.number)
		}
	}
}

func (r *running) mark(t *testing.T, kind event.Kind, session, stream string) uint64 {
	t.Helper()
	ack, err := r.b.Log.Mark(t.Context(), kind, session, stream)
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

// stored returns the sequences of what is in the log of a session and stream.
func (r *running) stored(t *testing.T, session, stream string) []uint64 {
	t.Helper()
	var page eventlog.Page
	passes(t, eventlog.ErrUnavailable, func() error { // what is asked right after a restart ends when the log hears of it
		state, err := r.b.Log.Look(t.Context(), r.b.Log.Partition(session))
		if err == nil {
			page, err = r.b.Log.Read(t.Context(), eventlog.Query{Session: session, Stream: stream, UpTo: state.Last, MaxEvents: 100_000, MaxBytes: 1 << 30})
		}
		return err
	})
	var all []uint64
	for _, e := range page.Entries {
		all = append(all, e.Sequence)
	}
	return all
}

// ask asks for the mark of a stream as an edge does.
func (r *running) ask(t *testing.T, session, stream string) (marks.Mark, error) {
	t.Helper()
	p := r.b.Log.Partition(session)
	state, err := r.b.Log.Look(t.Context(), p)
	if err != nil {
		return marks.Mark{}, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), marks.AskTimeout)
	defer cancel()
	reply, err := marks.Ask(ctx, r.b.Conn, marks.Request{Partition: p, Birth: state.Birth, Session: session, Stream: stream, Through: state.Last, First: state.First, Limit: state.Limits.MaxEventsPerStream})
	return lookUp(reply, place{session, stream}), err
}

// wantMark waits for an answer, which has to be the right one at once.
func (r *running) wantMark(t *testing.T, session, stream string, want marks.Mark) {
	t.Helper()
	var got marks.Mark
	eventually(t, func() (err error) {
		got, err = r.ask(t, session, stream)
		return err
	})
	if got != want {
		t.Errorf("the mark of %s/%s is %+v, want %+v", session, stream, got, want)
	}
}

// metric returns the value of a metric with the given label value, or the number
// of observations of a histogram.
func (r *running) metric(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := r.env.Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "rejoin_janitor_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label != "" && m.GetLabel()[0].GetValue() != label {
				continue
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("there is no metric %s{%s}", name, label)
	return 0
}

func wantSequences(got, want []uint64) error {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("the log holds %v, want %v", got, want)
	}
	return nil
}
