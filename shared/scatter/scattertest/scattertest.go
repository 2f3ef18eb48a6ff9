// Package scattertest helps to test questions of package scatter.
package scattertest

import (
	"context"
	"sync"
	"testing"

	"rejoin/shared/waittest"
)

// Serve runs serve, until the test or end ends it.
func Serve(t *testing.T, serve func(context.Context) error) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// Until asks until the answers, or an error, are as they should be.
func Until[A any](t *testing.T, ask func() ([]A, error), ok func([]A, error) bool) []A {
	t.Helper()
	type result struct {
		answers []A
		err     error
	}
	return waittest.Value(t, "the expected answers",
		func() result { answers, err := ask(); return result{answers, err} },
		func(r result) bool { return ok(r.answers, r.err) }).answers
}
