package scatter_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/scatter"
	"rejoin/shared/scatter/scattertest"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

const subject = "who"

func parse(data []byte) (name string, err error) {
	err = json.Unmarshal(data, &name)
	return name, err
}

// listen answers with a name, or nothing, and the question.
func listen(t *testing.T, nc *nats.Conn, name string) (end func()) {
	t.Helper()
	return scattertest.Serve(t, func(ctx context.Context) error {
		return scatter.Serve(ctx, nc, subject, parse, func(q string) []string { return []string{name, q} })
	})
}

func from(answer []string) string { return answer[0] }

func ask(ctx context.Context, nc *nats.Conn, known int) (names []string, err error) {
	within := 100 * time.Millisecond
	if known > 0 {
		within = time.Hour
	}
	answers, err := scatter.Ask(ctx, nc, subject, "<", from, known, within)
	for _, a := range answers {
		names = append(names, a[0]+a[1])
	}
	slices.Sort(names)
	return names, err
}

// heard waits until these answer, and the error is want.
func heard(t *testing.T, nc *nats.Conn, want error, names ...string) {
	t.Helper()
	scattertest.Until(t,
		func() ([]string, error) { return ask(t.Context(), nc, 0) },
		func(got []string, err error) bool { return errors.Is(err, want) && slices.Equal(got, names) })
}

func TestAsk_AllListeners(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	if names, err := ask(t.Context(), nc, 1); err != nil || len(names) > 0 {
		t.Errorf("no answer: %v, %v", names, err)
	}
	listen(t, srv.Connect(), "one")
	listen(t, srv.Connect(), "one") // reconnects
	end := listen(t, srv.Connect(), "two")
	heard(t, nc, nil, "one<", "two<")
	if names, err := ask(t.Context(), nc, 2); err != nil || len(names) != 2 {
		t.Errorf("two are known of: %v, %v", names, err)
	}
	end()
	heard(t, nc, nil, "one<")
}

func TestAsk_InvalidQuestionOrAnswer(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	end := listen(t, srv.Connect(), "")
	heard(t, nc, scatter.ErrUnknown)
	listen(t, srv.Connect(), "one")
	heard(t, nc, scatter.ErrUnknown, "one<")
	end()
	for _, data := range []string{"", "{", "1"} {
		must.NoError(t, nc.PublishRequest(subject, nc.NewInbox(), []byte(data)))
	}
	heard(t, nc, nil, "one<")
}

// An answer to any other subject would be stored in the log, or ask another service.
func TestServe_ReplyIsNoInbox(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	listen(t, srv.Connect(), "one")
	heard(t, nc, nil, "one<")
	elsewhere := must.Value(nc.SubscribeSync("mcp.>"))(t)
	must.NoError(t, nc.PublishRequest(subject, "mcp.0.s.life.=clear", []byte(`"<"`)))
	heard(t, nc, nil, "one<") // questions are answered one after the other
	if n, _, err := elsewhere.Pending(); n != 0 || err != nil {
		t.Errorf("%d answers go elsewhere, %v", n, err)
	}
}

func TestAsk_WithoutConnectionOrTime(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	listen(t, srv.Connect(), "one")
	heard(t, nc, nil, "one<")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ask(ctx, nc, 1); !errors.Is(err, scatter.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("no time: %v", err)
	}
	nc.Close()
	if _, err := ask(t.Context(), nc, 1); !errors.Is(err, scatter.ErrUnknown) {
		t.Errorf("asked: %v", err)
	}
	if err := scatter.Serve(t.Context(), nc, subject, parse, func(string) string { return "" }); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("served: %v", err)
	}
}

// Answers that arrive while the client reconnects are lost: missing answers are then no result.
func TestAsk_ConnectionIsLost(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc, other := srv.Connect(), srv.Connect()
	must.Value(other.Subscribe(subject, func(*nats.Msg) {
		if err := nc.ForceReconnect(); err != nil {
			t.Error(err)
		}
	}))(t)
	must.NoError(t, other.Flush())
	answers, err := scatter.Ask(t.Context(), nc, subject, "<", from, 0, waittest.Timeout)
	if !errors.Is(err, scatter.ErrUnknown) || len(answers) > 0 {
		t.Errorf("%v, %v", answers, err)
	}
}

func TestAskUntil_EnoughAnswers(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	listen(t, srv.Connect(), "one")
	listen(t, srv.Connect(), "two")
	heard(t, nc, nil, "one<", "two<")
	answers, err := scatter.AskUntil(t.Context(), nc, subject, "<", from, func(all [][]string) bool { return len(all) == 1 }, 0, time.Hour)
	if err != nil || len(answers) != 1 {
		t.Errorf("%v, %v", answers, err)
	}
	answers, err = scatter.AskUntil(t.Context(), nc, subject, "<", from, func([][]string) bool { return false }, 0, 100*time.Millisecond)
	if err != nil || len(answers) > 2 {
		t.Errorf("the time is over: %v, %v", answers, err)
	}
}
