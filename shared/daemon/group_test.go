package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/must"
)

var errBroken = errors.New("broken pipe")

// recorder notes what happened, in order.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// untilStopped is an actor that takes a while to stop.
func (r *recorder) untilStopped(name string, takes time.Duration, result error) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		r.note(name + " told")
		time.Sleep(takes)
		r.note(name + " done")
		return result
	}
}

func TestGroup_StopsInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		g := Group{StopTimeout: time.Minute}
		for _, name := range []string{"nats", "janitor", "edge"} {
			g.Add(name, r.untilStopped(name, 10*time.Second, nil))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		must.NoError(t, g.Run(ctx))
		want := []string{"edge told", "edge done", "janitor told", "janitor done", "nats told", "nats done"}
		if got := r.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestGroup_ActorFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var g Group
		g.Add("nats", r.untilStopped("nats", 0, errors.New("disk full")))
		g.Add("edge", func(context.Context) error {
			time.Sleep(time.Second)
			return errBroken
		})
		g.Add("drain", r.untilStopped("drain", 0, context.Canceled))
		err := g.Run(t.Context())
		if !errors.Is(err, errBroken) {
			t.Errorf("%v does not wrap the cause", err)
		}
		if got, want := err.Error(), "edge: broken pipe\nnats: disk full"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		want := []string{"drain told", "drain done", "nats told", "nats done"}
		if got := r.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestGroup_ActorReturnsNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var g Group
		g.Add("nats", r.untilStopped("nats", 0, nil))
		g.Add("task", func(context.Context) error { return nil })
		must.NoError(t, g.Run(t.Context()))
		if got, want := r.all(), []string{"nats told", "nats done"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestGroup_StopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		release := make(chan struct{})
		g := Group{StopTimeout: 20 * time.Second}
		g.Add("nats", r.untilStopped("nats", 0, nil))
		g.Add("janitor", func(context.Context) error { <-release; return nil })
		g.Add("edge", r.untilStopped("edge", 15*time.Second, nil))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := g.Run(ctx)
		if !errors.Is(err, ErrStopTimeout) || err.Error() != "janitor: did not stop in time (20s)" {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("gave up after %s, want 20s", took)
		}
		synctest.Wait()
		want := []string{"edge told", "edge done", "nats told", "nats done"}
		if got := r.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		close(release)
	})
}

func TestGroup_DefaultStopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		var g Group
		g.Add("edge", func(context.Context) error { <-release; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		if err := g.Run(ctx); !errors.Is(err, ErrStopTimeout) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != DefaultStopTimeout {
			t.Errorf("gave up after %s, want %s", took, DefaultStopTimeout)
		}
	})
}

func TestGroup_Empty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := new(Group).Run(ctx); err != nil || ctx.Err() == nil {
			t.Errorf("returned %v, context %v", err, ctx.Err())
		}
	})
}

func TestGroup_ContextValues(t *testing.T) {
	type key struct{}
	var got any
	var g Group
	g.Add("task", func(ctx context.Context) error {
		got = ctx.Value(key{})
		return nil
	})
	if err := g.Run(context.WithValue(t.Context(), key{}, "value")); err != nil || got != "value" {
		t.Errorf("got %v, %v", got, err)
	}
}
