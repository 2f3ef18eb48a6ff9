package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rejoin/shared/must"
)

var errBroken = errors.New("broken pipe")

// recorder notes events, in order.
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

func TestRun_StopsInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var actors []Actor
		for _, name := range []string{"nats", "janitor", "edge"} {
			actors = append(actors, Actor{name, r.untilStopped(name, 10*time.Second, nil)})
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		must.NoError(t, Run(ctx, Config{StopTimeout: time.Minute}, NewEnv(nil), actors...))
		want := []string{"edge told", "edge done", "janitor told", "janitor done", "nats told", "nats done"}
		if got := r.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestRun_ActorFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		err := Run(t.Context(), Config{}, NewEnv(nil),
			Actor{"nats", r.untilStopped("nats", 0, errors.New("disk full"))},
			Actor{"edge", func(context.Context) error {
				time.Sleep(time.Second)
				return fmt.Errorf("%w: %w", errBroken, context.Canceled) // of a request of its own
			}},
			Actor{"page", r.untilStopped("page", 0, context.Canceled)})
		if !errors.Is(err, errBroken) {
			t.Errorf("%v does not wrap the cause", err)
		}
		if got, want := err.Error(), "edge: broken pipe: context canceled\nnats: disk full"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		want := []string{"page told", "page done", "nats told", "nats done"}
		if got := r.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestRun_ActorReturnsNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		must.NoError(t, Run(t.Context(), Config{}, NewEnv(nil),
			Actor{"nats", r.untilStopped("nats", 0, nil)},
			Actor{"task", func(context.Context) error { return nil }}))
		if got, want := r.all(), []string{"nats told", "nats done"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestRun_StopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		release := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := Run(ctx, Config{}, NewEnv(nil),
			Actor{"nats", r.untilStopped("nats", 0, nil)},
			Actor{"janitor", func(context.Context) error { <-release; return nil }},
			Actor{"edge", r.untilStopped("edge", 15*time.Second, nil)})
		if !errors.Is(err, ErrStopTimeout) || err.Error() != "janitor: did not stop in time (30s)" {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != DefaultStopTimeout {
			t.Errorf("gave up after %s, want %s", took, DefaultStopTimeout)
		}
		synctest.Wait()
		want := []string{"edge told", "edge done", "nats told", "nats done"}
		if got := r.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		close(release)
	})
}

func TestRun_Empty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := Run(ctx, Config{}, NewEnv(nil)); err != nil || ctx.Err() == nil {
			t.Errorf("returned %v, context %v", err, ctx.Err())
		}
	})
}

func TestRun_ContextValues(t *testing.T) {
	type key struct{}
	var got any
	ctx := context.WithValue(t.Context(), key{}, "value")
	if err := Run(ctx, Config{}, NewEnv(nil), Actor{"task", func(ctx context.Context) error {
		got = ctx.Value(key{})
		return nil
	}}); err != nil || got != "value" {
		t.Errorf("got %v, %v", got, err)
	}
}
