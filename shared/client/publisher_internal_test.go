package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// roundTrip is a transport that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPublisher_Suspend suspends the machine after an attempt whose outcome is unknown: timers and the
// monotonic clock stand still.
func TestPublisher_Suspend(t *testing.T) {
	if now := wallClock(); strings.Contains(now.String(), "m=") {
		t.Errorf("%s has a monotonic reading", now)
	}
	synctest.Test(t, func(t *testing.T) {
		var suspended atomic.Int64
		attempts := 0
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			attempts++
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
			suspended.Add(int64(10 * time.Minute))
			return nil, io.ErrUnexpectedEOF
		})
		p, err := NewPublisher(PublisherConfig{URL: "http://ingest", HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatal(err)
		}
		p.now = func() time.Time { return wallClock().Add(time.Duration(suspended.Load())) }
		_, err = p.PublishAndWait(t.Context(), Message{Session: "demo", Stream: "main", Data: []byte("1")})
		if !errors.Is(err, ErrUnknown) || attempts != 1 {
			t.Errorf("error is %v after %d attempts, want ErrUnknown after 1", err, attempts)
		}
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
