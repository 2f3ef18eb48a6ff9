package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

func TestCall_ReachesTheBridge(t *testing.T) {
	nc := natstest.StartParallel(t).Connect()
	for _, c := range []rpc.Ask{
		{Action: rpc.Open, Session: "s!", Owner: "me", Header: http.Header{"X-A": {"1", "zwei \u00fc"}}, Data: []byte("{ }\n")},
		{Action: rpc.Post, Session: "*.", Stream: `abcdefabcdef-"x"`, Data: []byte("[]")},
		{Action: rpc.End, Session: "s"},
		{Action: rpc.Cancel, Session: "s", Stream: "abcdefabcdef-1", Resumable: true, Since: time.Date(2026, 7, 28, 1, 2, 3, 4, time.UTC)},
	} {
		subject := rpc.Subject(c.Session)
		if c.Action == rpc.Open {
			subject = rpc.OpenSubject
		}
		want := rpc.Answer{Status: 401, Header: http.Header{"Www-Authenticate": {`Bearer realm="a"`}}, Data: []byte(`{"jsonrpc":"2.0"}`)}
		got := make(chan rpc.Ask, 1)
		sub, err := nc.QueueSubscribe(subject, rpc.Queue, func(msg *nats.Msg) {
			call, err := rpc.ParseAsk(msg)
			if err != nil {
				t.Error(err)
			}
			got <- call
			if err := want.Respond(msg); err != nil {
				t.Error(err)
			}
		})
		must.NoError(t, err)
		answer := must.Value(c.Do(t.Context(), nc))(t)
		if diff := cmp.Diff(want, answer); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(c, <-got, cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
			t.Error(diff)
		}
		must.NoError(t, sub.Unsubscribe())
	}
}

// An answer to any other subject would be stored in the log, or ask another service.
func TestCall_ReplyIsNoInbox(t *testing.T) {
	nc := natstest.StartParallel(t).Connect()
	calls := must.Value(nc.SubscribeSync(rpc.OpenSubject))(t)
	for _, reply := range []string{"", "mcp.0.s.life.=clear", "$KV.MCP_LEASE.janitor"} {
		msg := &nats.Msg{Subject: rpc.OpenSubject, Reply: reply, Header: nats.Header{"Rejoin-Call": {`{"action":"open","session":"s"}`}}}
		must.NoError(t, nc.PublishMsg(msg))
		call := must.Value(calls.NextMsg(time.Minute))(t)
		if c, err := rpc.ParseAsk(call); !errors.Is(err, rpc.ErrInvalid) {
			t.Errorf("the reply %q: %+v, %v", reply, c, err)
		}
		if err := (rpc.Answer{Status: 200}).Respond(call); !errors.Is(err, rpc.ErrInvalid) {
			t.Errorf("the reply %q is answered: %v", reply, err)
		}
	}
}

func TestCall_NoBridgeOrNoAnswer(t *testing.T) {
	nc := natstest.StartParallel(t).Connect()
	c := rpc.Ask{Action: rpc.Post, Session: "s"}
	if _, err := c.Do(t.Context(), nc); !errors.Is(err, rpc.ErrNobody) {
		t.Errorf("%v, want that there is no listener", err)
	}
	must.Value(nc.Subscribe(rpc.Subject("s"), func(*nats.Msg) {}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, nc); !errors.Is(err, rpc.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that it is not known", err)
	}
}

// A request that was never sent has no unknown outcome.
func TestCall_TooLarge(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	large := rpc.Ask{Action: rpc.Post, Session: "s", Data: make([]byte, nc.MaxPayload())}
	if _, err := large.Do(t.Context(), nc); !errors.Is(err, rpc.ErrTooLarge) || errors.Is(err, rpc.ErrUnknown) {
		t.Errorf("%v, want that it is too large", err)
	}
	srv.Stop()
	for nc.IsConnected() {
		runtime.Gosched()
	}
	if _, err := (rpc.Ask{Action: rpc.Post, Session: "s"}).Do(t.Context(), nc); !errors.Is(err, rpc.ErrAway) || errors.Is(err, rpc.ErrUnknown) {
		t.Errorf("%v, want that NATS is away", err)
	}
}

func TestServe_InvalidCall(t *testing.T) {
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
		if _, err := rpc.ParseAsk(msg); !errors.Is(err, rpc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseAsk(f *testing.F) {
	f.Add(rpc.Subject("s"), `{"action":"post","session":"s","stream":"x","header":{"A":["b"]}}`)
	f.Add(rpc.OpenSubject, `{"action":"open","session":"s"}`)
	f.Fuzz(func(t *testing.T, subject, head string) {
		c, err := rpc.ParseAsk(&nats.Msg{Subject: subject, Header: nats.Header{"Rejoin-Call": {head}}})
		if (err != nil) != errors.Is(err, rpc.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
		if err == nil && c.Action != rpc.Open && !strings.HasSuffix(subject, rpc.Subject(c.Session)) {
			t.Errorf("%+v came on %s", c, subject)
		}
	})
}

// An edge may write any accepted answer of a bridge to a connection.
func FuzzParseAnswer(f *testing.F) {
	f.Add(`{"status":401,"header":{"Www-Authenticate":["Bearer x"],"Retry-After":["5"]}}`)
	f.Add(`{"status":200,"header":{"Www-Authenticate":["x\r\n\r\nHTTP/1.1 200 OK\r\n"],"A\r\nB":["c"],"Set-Cookie":["a=b"]}}`)
	f.Add(`{"status":99999}`)
	f.Add(`{"status":101}`)
	f.Add(`{"Status":2e2,"HEADER":{"retry-after":["\u0000"]}}`)
	f.Fuzz(func(t *testing.T, head string) {
		a, err := rpc.ParseAnswer(&nats.Msg{Header: nats.Header{"Rejoin-Call": {head}}})
		if err != nil {
			if !errors.Is(err, rpc.ErrInvalid) {
				t.Errorf("the error is %v", err)
			}
			return
		}
		if a.Status < 200 || a.Status > 599 {
			t.Errorf("the status is %d", a.Status)
		}
		for name, values := range a.Header {
			for _, value := range values {
				if !slices.Contains(rpc.AnswerHeaders, name) || strings.ContainsAny(value, "\r\n\x00") {
					t.Errorf("the header has %q: %q", name, value)
				}
			}
		}
		written := rpc.Answer{Status: a.Status, Header: a.Header}
		again, err := rpc.ParseAnswer(&nats.Msg{Header: nats.Header{"Rejoin-Call": {asJSON(t, written)}}})
		if diff := cmp.Diff(written, again); err != nil || diff != "" {
			t.Error(err, diff)
		}
	})
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text := must.Value(json.Marshal(v))(t)
	return string(text)
}
