// Package waittest waits in tests for conditions: one deadline, and a failure that
// reports the last value. Within a testing/synctest bubble it waits in virtual time.
package waittest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// Timeout bounds every wait. It is long because only a failing test uses it up: the tests of
// several packages share a machine, on which any process may pause for seconds.
const Timeout = time.Minute

// The time between two looks at a condition is an eighth of the wait so far, from firstPause to
// longestPause: most conditions come true within milliseconds, and a look may be a request to a
// server that shares the machine with other tests.
const (
	firstPause   = time.Millisecond
	longestPause = 100 * time.Millisecond
)

// Context returns a context that ends with the test, or after Timeout.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	t.Cleanup(cancel)
	return ctx
}

// Until waits until a condition is true.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !poll(ok) {
		t.Fatalf("never: %s", what)
	}
}

// Value calls get until its value is as it should be, and returns that value.
func Value[V any](t testing.TB, what string, get func() V, ok func(V) bool) (last V) {
	t.Helper()
	if !poll(func() bool { last = get(); return ok(last) }) {
		t.Fatalf("never: %s; the last is %+v", what, last)
	}
	return last
}

// NoError calls do until it returns no error. When passing errors are named, any other error
// fails the test at once.
func NoError(t testing.TB, do func() error, passing ...error) {
	t.Helper()
	var last error
	if !poll(func() bool {
		last = do()
		if last != nil && len(passing) > 0 && !slices.ContainsFunc(passing, func(p error) bool { return errors.Is(last, p) }) {
			t.Fatal(last)
		}
		return last == nil
	}) {
		t.Fatalf("after %s: %v", Timeout, last)
	}
}

// Receive returns the next value of a channel, the zero value of a closed one.
func Receive[V any](t testing.TB, what string, from <-chan V) (value V) {
	t.Helper()
	timer := time.NewTimer(Timeout)
	defer timer.Stop()
	select {
	case value = <-from:
	case <-timer.C:
		t.Fatalf("never: %s", what)
	}
	return value
}

func poll(ok func() bool) bool {
	for begun := time.Now(); !ok(); {
		waited := time.Since(begun)
		if waited > Timeout {
			return false
		}
		time.Sleep(min(max(firstPause, waited/8), longestPause))
	}
	return true
}
