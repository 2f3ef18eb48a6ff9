package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/leaktest"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

func TestACallReachesTheBridgeAsItIs(t *testing.T) {
	nc := natstest.Start(t).Connect()
	for _, c := range []rpc.Call{
		{Action: rpc.Open, Session: "s!", Owner: "me", Header: http.Header{"X-A": {"1", "zwei \u00fc"}}, Data: []byte("{ }\n")},
		{Action: rpc.Post, Session: "*.", Stream: `abcdefabcdef-"x"`, Data: []byte("[]")},
		{Action: rpc.End, Session: "s"},
	} {
		subject := rpc.Subject(c.Session)
		if c.Action == rpc.Open {
			subject = rpc.OpenSubject
		}
		want := rpc.Answer{Status: 401, Header: http.Header{"Www-Authenticate": {`Bearer realm="a"`}}, Data: []byte(`{"jsonrpc":"2.0"}`)}
		got := make(chan rpc.Call, 1)
		sub, err := nc.QueueSubscribe(subject, rpc.Queue, func(msg *nats.Msg) {
			call, err := rpc.ParseCall(msg)
			if err != nil {
				t.Error(err)
			}
			got <- call
			if err := want.Respond(msg); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.Do(t.Context(), nc)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, answer); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(c, <-got, cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
			t.Error(diff)
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNobodyAndSilence(t *testing.T) {
	nc := natstest.Start(t).Connect()
	c := rpc.Call{Action: rpc.Post, Session: "s"}
	if _, err := c.Do(t.Context(), nc); !errors.Is(err, rpc.ErrNobody) {
		t.Errorf("%v, want that nobody listens", err)
	}
	if _, err := nc.Subscribe(rpc.Subject("s"), func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, nc); !errors.Is(err, rpc.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that it is not known", err)
	}
}

// What was never sent is not said to be unknown.
func TestWhatIsNotSent(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Connect()
	large := rpc.Call{Action: rpc.Post, Session: "s", Data: make([]byte, nc.MaxPayload())}
	if _, err := large.Do(t.Context(), nc); !errors.Is(err, rpc.ErrTooLarge) || errors.Is(err, rpc.ErrUnknown) {
		t.Errorf("%v, want that it is too large", err)
	}
	srv.Stop()
	for nc.IsConnected() {
		runtime.Gosched()
	}
	if _, err := (rpc.Call{Action: rpc.Post, Session: "s"}).Do(t.Context(), nc); !errors.Is(err, rpc.ErrAway) || errors.Is(err, rpc.ErrUnknown) {
		t.Errorf("%v, want that NATS is away", err)
	}
}

func TestWhatIsNoCallIsRefused(t *testing.T) {
	head := func(text string) nats.Header { return nats.Header{"Rejoin-Call": {text}} }
	for name, msg := range map[string]*nats.Msg{
		"no header":        {Subject: rpc.Subject("s")},
		"not JSON":         {Subject: rpc.Subject("s"), Header: head("{")},
		"no session":       {Subject: rpc.Subject("s"), Header: head(`{"action":"post"}`)},
		"another session":  {Subject: rpc.Subject("s"), Header: head(`{"action":"post","session":"t"}`)},
		"open on a place":  {Subject: rpc.Subject("s"), Header: head(`{"action":"open","session":"s"}`)},
		"post on the open": {Subject: rpc.OpenSubject, Header: head(`{"action":"post","session":"s"}`)},
		"a bad stream":     {Subject: rpc.Subject("s"), Header: head(`{"action":"post","session":"s","stream":"a b"}`)},
	} {
		if _, err := rpc.ParseCall(msg); !errors.Is(err, rpc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add(rpc.Subject("s"), `{"action":"post","session":"s","stream":"x","header":{"A":["b"]}}`)
	f.Add(rpc.OpenSubject, `{"action":"open","session":"s"}`)
	f.Fuzz(func(t *testing.T, subject, head string) {
		c, err := rpc.ParseCall(&nats.Msg{Subject: subject, Header: nats.Header{"Rejoin-Call": {head}}})
		if (err != nil) != errors.Is(err, rpc.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
		if err == nil && c.Action != rpc.Open && !strings.HasSuffix(subject, rpc.Subject(c.Session)) {
			t.Errorf("%+v came on %s", c, subject)
		}
	})
}
