package bridge

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// later runs f, and returns a channel for its result.
func later[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

// background runs f, and returns a channel that is closed when f has returned.
func background(f func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	return over
}

// second returns the second of two results.
func second[A, B any](_ A, b B) B { return b }

// wantHas expects that data holds all parts.
func wantHas[T ~string | ~[]byte](t testing.TB, data T, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(string(data), part) {
			t.Errorf("%.2000s has no %s", data, part)
		}
	}
}

// wantStatus fails the test unless an answer has a status, and holds all parts.
func wantStatus(t testing.TB, a rpc.Answer, status int, parts ...string) {
	t.Helper()
	if a.Status != status {
		t.Fatalf("%d %s, want %d", a.Status, a.Data, status)
	}
	wantHas(t, a.Data, parts...)
}

// wantUnknown expects that a client learns that the outcome of its request is unknown.
func wantUnknown(t testing.TB, a rpc.Answer) {
	t.Helper()
	if a.Status != http.StatusGatewayTimeout || a.Header.Get("Retry-After") != "" {
		t.Errorf("it was answered %d %s %s", a.Status, a.Header, a.Data)
	}
}

// wantBusy expects that a client is to try again later.
func wantBusy(t testing.TB, a rpc.Answer) {
	t.Helper()
	if a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("it was answered %d %s %s", a.Status, a.Header, a.Data)
	}
}

// wantMessages expects these messages.
func wantMessages(t testing.TB, all []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
}

// wantParts expects as many messages as there are parts, each of which holds its part.
func wantParts(t testing.TB, all []string, parts ...string) {
	t.Helper()
	if len(all) != len(parts) {
		t.Fatalf("there are %d messages: %q", len(all), all)
	}
	for i, part := range parts {
		wantHas(t, all[i], part)
	}
}

// last returns the last message.
func last(all []string) string { return all[len(all)-1] }

// wantError expects that the last of n messages is an error for a request.
func wantError(t testing.TB, all []string, n int, id string) {
	t.Helper()
	if len(all) != n {
		t.Fatalf("there are %d messages: %v", len(all), all)
	}
	wantErrorFor(t, []byte(last(all)), id)
}

// wantErrorFor expects an error for a request.
func wantErrorFor(t testing.TB, data []byte, id string) {
	t.Helper()
	if m, err := rpc.ParseMessage(data); err != nil || m.Error == nil || string(m.ID) != id {
		t.Errorf("%s is no error for %s", data, id)
	}
}

// wantMetric expects a value of a metric; see [instance.metric].
func (in *instance) wantMetric(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	if n := in.metric(t, name, labels...); n != want {
		t.Errorf("%s %q is %v, want %v", name, labels, n, want)
	}
}

// wantPosted expects that a body that holds text was posted so many times.
func (s *server) wantPosted(t testing.TB, want int, text string) {
	t.Helper()
	if n := s.posted(text); n != want {
		t.Errorf("the server received %s %d times, want %d", text, n, want)
	}
}

// want expects so many lines that hold all parts.
func (l *logLines) want(t testing.TB, want int, parts ...string) {
	t.Helper()
	if n := l.count(parts...); n != want {
		t.Errorf("%d lines have %q, want %d: %s", n, parts, want, l)
	}
}

// messages returns the messages of a stream in the log.
func (s *system) messages(t testing.TB, name, stream string) []string {
	t.Helper()
	all, _ := s.read(t, name, stream)
	return all
}

// has waits until the log has n messages of a stream, and returns all that it has.
func (s *system) has(t testing.TB, name, stream string, n int) (all []string) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("%s has %d messages", stream, n), func() bool {
		all = s.messages(t, name, stream)
		return len(all) >= n
	})
	return all
}

// receives waits until the log has these messages of a stream, and no others.
func (s *system) receives(t testing.TB, name, stream string, want ...string) {
	t.Helper()
	waittest.Until(t, stream+" has its messages", func() bool { return slices.Equal(s.messages(t, name, stream), want) })
}

// becomes waits until a task has a status, expects that its result or error holds all parts, and returns its state.
func (s *system) becomes(t testing.TB, name string, want mcp.Status, parts ...string) (is mcp.StoredTask) {
	t.Helper()
	waittest.NoError(t, func() error {
		all := s.states(t, name)
		if len(all) > 0 {
			is = all[len(all)-1]
		}
		if is.Status != want {
			return fmt.Errorf("the task is %+v, want %s", is, want)
		}
		return nil
	})
	wantHas(t, string(is.Result)+string(is.Error), parts...)
	return is
}

func (s *system) wantState(t testing.TB, name string, want session.State) {
	t.Helper()
	waittest.Until(t, name+" is "+string(want), func() bool {
		rec, err := s.b.Sessions.Get(waittest.Context(t), name)
		return err == nil && rec.State == want
	})
}
