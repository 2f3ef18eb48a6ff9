// Package scattertest helps to test questions of package scatter.
package scattertest

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Serve runs what answers, until the test or end ends it.
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

// patience is how long those who answer may take until they listen.
const patience = 60 * time.Second

// Until asks until the answers, or an error, are as they should be.
func Until[A any](t *testing.T, ask func() ([]A, error), ok func([]A, error) bool) []A {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		answers, err := ask()
		if ok(answers, err) {
			return answers
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d answer: %v", len(answers), err)
		}
	}
}
