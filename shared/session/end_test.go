package session_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestEnd(t *testing.T) {
	t.Parallel()
	type step struct {
		stream string
		clear  bool
	}
	for name, tt := range map[string]struct {
		steps []step
		want  []string // after the opening, the birth of t and its event
	}{
		"session":                          {[]step{{"", false}}, []string{"=seal", "=end.t", "=end"}},
		"session and clear":                {[]step{{"", true}}, []string{"=seal", "=end.t", "=end", "=clear"}},
		"stream":                           {[]step{{"t", false}}, []string{"=end.t"}},
		"stream and clear":                 {[]step{{"t", true}}, []string{"=end.t", "=clear.t"}},
		"repeated":                         {[]step{{"t", false}, {"t", false}, {"", false}, {"", false}}, []string{"=end.t", "=seal", "=end"}},
		"repeated with clear":              {[]step{{"", true}, {"", true}, {"", false}}, []string{"=seal", "=end.t", "=end", "=clear"}},
		"cleared later":                    {[]step{{"", false}, {"", true}}, []string{"=seal", "=end.t", "=end", "=clear"}},
		"stream cleared later":             {[]step{{"t", false}, {"t", true}}, []string{"=end.t", "=clear.t"}},
		"stream after its session":         {[]step{{"", false}, {"t", false}}, []string{"=seal", "=end.t", "=end"}},
		"stream cleared after its session": {[]step{{"", false}, {"t", true}}, []string{"=seal", "=end.t", "=end", "=clear.t"}},
	} {
		t.Run(name, func(t *testing.T) {
			nc := connect(t, natstest.Start(t))
			r, l := create(t, nc)
			rec := mustCreate(t, r, "s")
			must.NoError(t, publish(t, l, rec))
			for _, s := range tt.steps {
				must.NoError(t, r.End(waittest.Context(t), "s", s.stream, s.clear))
				if err := publish(t, l, rec); !errors.Is(err, session.ErrClosed) {
					t.Errorf("the stream is open: %v", err)
				}
			}
			want := []string{"mcp.0.s.=open", "mcp.0.s.L.=birth.t", "mcp.0.s.L.t"}
			for _, s := range tt.want {
				want = append(want, "mcp.0.s.L."+s)
			}
			if got := subjects(t, l, rec); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the log has %v, want %v", got, want)
			}
			ended := slices.ContainsFunc(tt.steps, func(s step) bool { return s.stream == "" })
			got, err := r.Get(waittest.Context(t), "s")
			if err != nil || (got.State == session.Closed) != ended || got.Ended.IsZero() == ended || got.Life != rec.Life {
				t.Errorf("the record is %+v, %v", got, err)
			}
			if registered, ok := r.Session("s"); !ok || registered.State != got.State {
				t.Errorf("the copy is %+v", registered)
			}
			if _, err := register(waittest.Context(t), r, "s", ""); errors.Is(err, session.ErrClosed) != ended {
				t.Errorf("registered again: %v", err)
			}
		})
	}
}

func TestEnd_UnknownSession(t *testing.T) {
	r, l := create(t, connect(t, natstest.StartParallel(t)))
	for _, stream := range []string{"", "t"} {
		if err := r.End(waittest.Context(t), "s", stream, true); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("stream %q: %v", stream, err)
		}
	}
	if got := subjects(t, l, session.Record{}); len(got) != 0 {
		t.Errorf("the log has %v", got)
	}
}

// A process stopped right after the seal. From then on the session is closed; its streams
// take events until another process completes the end.
func TestEnd_FinishesWhatAnotherProcessBegan(t *testing.T) {
	t.Parallel()
	for _, opening := range []bool{true, false} {
		for _, stream := range []string{"", "t"} {
			t.Run(fmt.Sprintf("opening=%t/stream=%s", opening, stream), func(t *testing.T) {
				nc := connect(t, natstest.Start(t))
				r, l := create(t, nc)
				rec := mustCreate(t, r, "s")
				must.NoError(t, publish(t, l, rec))
				seal(t, l.Conn(), rec)
				if got, err := r.Get(waittest.Context(t), "s"); err != nil || got.State != session.Closed {
					t.Fatalf("%+v, %v", got, err)
				}
				if !opening {
					forgetOpening(t, l, "s")
				}
				must.NoError(t, publish(t, l, rec))
				other, _ := open(t, nc)
				mustEnd(t, other, "s", stream)
				if err := publish(t, l, rec); !errors.Is(err, session.ErrClosed) {
					t.Errorf("the stream is open: %v", err)
				}
			})
		}
	}
}

func TestEnd_Concurrent(t *testing.T) {
	nc := connect(t, natstest.StartParallel(t))
	first, l := create(t, nc)
	second, _ := open(t, nc)
	third, _ := open(t, nc)
	registries := []*session.Registry{first, second, third}
	for round := range 10 {
		name, stream := fmt.Sprintf("s%d", round), []string{"", "t"}[round%2]
		rec := mustCreate(t, first, name)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				if err := registries[i%3].End(waittest.Context(t), name, stream, i%2 == 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		got, err := first.Get(waittest.Context(t), name)
		if err != nil || (got.State == session.Closed) != (stream == "") {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, kind := range []event.Kind{event.End, event.Clear} {
			if _, err := l.NewestSequence(waittest.Context(t), event.Subject{Session: name, Life: rec.Life, Stream: stream, Kind: kind}); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}

// A registry that lists sessions shows the end soon, also one that read it from the log.
func TestEnd_IndexShowsIt(t *testing.T) {
	_, r, l := single(t)
	other, _ := open(t, l.Conn())
	rec := mustCreate(t, r, "s")
	mustEnd(t, other, "s", "")
	waittest.Until(t, "the copy is closed", func() bool { got, _ := r.Session("s"); return got.State == session.Closed && got.Life == rec.Life })
	at, _, err := l.Sealed(waittest.Context(t), "s", rec.Life)
	if got, _ := r.Session("s"); err != nil || !got.Ended.Equal(at) { // the time is of no process's own clock
		t.Errorf("the registry has that it ended at %s, the log at %s, %v", got.Ended, at, err)
	}
	kv := must.Value(natstest.JetStream(t, l.Conn()).KeyValue(waittest.Context(t), session.Bucket))(t)
	if status, err := kv.Status(waittest.Context(t)); err != nil || status.Values() != 1 {
		t.Errorf("the registry has %d records, %v", status.Values(), err)
	}
}

// A life that was ended and forgotten, while a publisher that knew it was not connected, takes no event.
func TestPublish_LifeIsForgotten(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc, away := connect(t, srv), connect(t, srv)
	r, l := create(t, nc)
	_, publisher := open(t, away)
	made, lost := mustCreate(t, r, "s"), mustCreate(t, r, "lost")
	must.NoError(t, publish(t, publisher, made))
	forgetOpening(t, l, "lost") // by a power cut
	if err := publish(t, publisher, lost); err != nil {
		t.Errorf("the opening is lost: %v", err)
	}
	mustEnd(t, r, "s", "")
	forget(t, nc, "s")
	partition := must.Value(natstest.JetStream(t, nc).Stream(t.Context(), "MCP_0"))(t)
	must.NoError(t, partition.Purge(t.Context(), jetstream.WithPurgeSubject(event.Subject{Session: "s"}.SessionFilter())))
	_, err := publisher.Publish(t.Context(), eventlog.Event{Session: "s", Life: made.Life, Stream: "new", Data: []byte("{}")})
	if !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("another stream: %v", err)
	}
	reconnected := away.StatusChanged(nats.CONNECTED)
	must.NoError(t, away.ForceReconnect())
	<-reconnected
	if err := publish(t, publisher, made); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("the stream that it knew: %v", err)
	}
}
