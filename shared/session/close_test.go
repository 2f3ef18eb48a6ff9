package session_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

const settle = 20 * time.Millisecond

// markers returns the subjects of a partition's entries, in order.
func markers(t *testing.T, l *eventlog.Log) (subjects []string) {
	t.Helper()
	state, err := l.Look(patient(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	for s := uint64(1); s <= state.Last; s++ {
		e, err := l.At(patient(t), 0, s)
		if err != nil {
			t.Fatal(err)
		}
		subjects = append(subjects, e.RawSubject)
	}
	return subjects
}

func TestClosing(t *testing.T) {
	type step struct {
		stream string
		clear  bool
	}
	tests := map[string]struct {
		steps []step
		want  []string
	}{
		"session":                             {[]step{{"", false}}, []string{"mcp.0.s.=close"}},
		"session and clear":                   {[]step{{"", true}}, []string{"mcp.0.s.=close", "mcp.0.s.=clear"}},
		"stream":                              {[]step{{"t", false}}, []string{"mcp.0.s.t=close"}},
		"stream and clear":                    {[]step{{"t", true}}, []string{"mcp.0.s.t=close", "mcp.0.s.t=clear"}},
		"repeated":                            {[]step{{"t", false}, {"t", false}, {"", false}, {"", false}}, []string{"mcp.0.s.t=close", "mcp.0.s.=close"}},
		"repeated with clear":                 {[]step{{"", true}, {"", true}, {"", false}}, []string{"mcp.0.s.=close", "mcp.0.s.=clear"}},
		"cleared later":                       {[]step{{"", false}, {"", true}}, []string{"mcp.0.s.=close", "mcp.0.s.=clear"}},
		"cleared later, once":                 {[]step{{"", false}, {"", true}, {"", true}}, []string{"mcp.0.s.=close", "mcp.0.s.=clear"}},
		"stream cleared later, once":          {[]step{{"t", false}, {"t", true}, {"t", true}}, []string{"mcp.0.s.t=close", "mcp.0.s.t=clear"}},
		"stream after its session":            {[]step{{"", false}, {"t", false}}, []string{"mcp.0.s.=close"}},
		"stream cleared after its session":    {[]step{{"", false}, {"t", true}}, []string{"mcp.0.s.=close", "mcp.0.s.t=clear"}},
		"stream after its session's clearing": {[]step{{"", true}, {"t", true}}, []string{"mcp.0.s.=close", "mcp.0.s.=clear"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			nc := connect(t, natstest.Start(t))
			r, l := create(t, nc), newLog(t, nc)
			mustCreate(t, r, "s")
			for _, s := range tt.steps {
				if err := session.Close(patient(t), r, l, "s", s.stream, s.clear, settle); err != nil {
					t.Fatal(err)
				}
				if err := r.CheckOpen("s", "t"); !errors.Is(err, session.ErrClosed) {
					t.Errorf("the stream is open: %v", err)
				}
			}
			if got := markers(t, l); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("markers %v, want %v", got, tt.want)
			}
			first := tt.steps[0].stream
			rec, err := r.Get(patient(t), "s", first)
			if err != nil || rec.State != session.Closed || rec.ClosedAt != 1 || rec.Ended.IsZero() {
				t.Errorf("the record is %+v, %v", rec, err)
			}
			if err := r.CheckOpen("s", "other"); (first == "" || len(tt.steps) > 3) != errors.Is(err, session.ErrClosed) {
				t.Errorf("another stream: %v", err)
			}
			if _, err := r.Register(patient(t), "s", ""); (first == "" || len(tt.steps) > 3) != errors.Is(err, session.ErrClosed) {
				t.Errorf("registered again: %v", err)
			}
		})
	}
}

func TestClosingWhatIsNotThere(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	r, l := create(t, nc), newLog(t, nc)
	for _, stream := range []string{"", "t"} {
		if err := session.Close(patient(t), r, l, "s", stream, true, settle); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("stream %q: %v", stream, err)
		}
	}
	if got := markers(t, l); len(got) != 0 {
		t.Errorf("markers %v", got)
	}
}

func TestAnotherProcessFinishesAClose(t *testing.T) {
	for _, stream := range []string{"", "t"} {
		nc := connect(t, natstest.Start(t))
		r, other, l := create(t, nc), open(t, nc), newLog(t, nc)
		mustCreate(t, r, "s")
		ctx, cancel := context.WithCancel(t.Context())
		died := make(chan error, 1)
		go func() { died <- session.Close(ctx, r, l, "s", stream, true, time.Hour) }()
		eventually(t, "closing everywhere", func() bool { return errors.Is(other.CheckOpen("s", "t"), session.ErrClosed) })
		cancel()
		if err := <-died; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if got := markers(t, l); len(got) != 0 {
			t.Fatalf("markers %v before it settled", got)
		}
		if err := session.Close(patient(t), other, l, "s", stream, false, settle); err != nil {
			t.Fatal(err)
		}
		if got := markers(t, l); len(got) != 2 {
			t.Errorf("markers %v: the clear that was asked for is missing", got)
		}
	}
}

// Whoever collides may try again; in the end it is closed, and nobody hears
// anything but that.
func TestManyCloseOneThing(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	first, l := create(t, nc), newLog(t, nc)
	registries := []*session.Registry{first, open(t, nc), open(t, nc)}
	for round := range 10 {
		name, stream := fmt.Sprintf("s%d", round), []string{"", "t"}[round%2]
		mustCreate(t, first, name)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				for {
					err := session.Close(patient(t), registries[i%3], l, name, stream, i%2 == 0, time.Millisecond)
					if err == nil {
						return
					}
					if !errors.Is(err, session.ErrConflict) {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		rec, err := first.Get(patient(t), name, stream)
		if err != nil || rec.State != session.Closed {
			t.Fatalf("%+v, %v", rec, err)
		}
		closed, err := l.First(patient(t), event.Subject{Session: name, Stream: stream, Kind: event.Close}, 1)
		if err != nil || rec.ClosedAt < closed {
			t.Errorf("closed at %d, first marker %d, %v", rec.ClosedAt, closed, err)
		}
		if _, err := l.Last(patient(t), event.Subject{Session: name, Stream: stream, Kind: event.Clear}); err != nil {
			t.Errorf("the clear is missing: %v", err)
		}
	}
}

func TestAClosedNameIsNotReopened(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	r, l := create(t, nc), newLog(t, nc)
	mustCreate(t, r, "s")
	if err := session.Close(patient(t), r, l, "s", "", false, settle); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(patient(t), session.New("s", "", nil, time.Now())); !errors.Is(err, session.ErrExists) {
		t.Errorf("created again: %v", err)
	}
}
