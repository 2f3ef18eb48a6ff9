package presence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"rejoin/shared/natstest"
	"rejoin/shared/presence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.IgnoreLeaks()...) }

// serve runs an edge that answers.
func serve(t *testing.T, nc *nats.Conn, answer func(presence.Question) presence.Answer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- presence.Serve(ctx, nc, answer) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// ask asks until so many answer.
func ask(t *testing.T, nc *nats.Conn, q presence.Question, edges int) []presence.Answer {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		answers, err := presence.Ask(t.Context(), nc, q, 100*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if len(answers) == edges {
			slices.SortFunc(answers, func(a, b presence.Answer) int { return strings.Compare(a.Edge, b.Edge) })
			return answers
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d edges answer", len(answers))
		}
	}
}

func TestEveryEdgeAnswers(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Connect()
	long := strings.Repeat(`"<`, 64)
	q := presence.Question{Sessions: slices.Repeat([]presence.Session{{Name: long, Within: 1 << 40}}, presence.MaxSessions)}
	if answers, err := presence.Ask(t.Context(), nc, q, time.Hour); err != nil || len(answers) != 0 {
		t.Errorf("nobody: %v, %v", answers, err)
	}
	for i := range 2 {
		serve(t, srv.Connect(), func(q presence.Question) presence.Answer {
			a := presence.Answer{Edge: fmt.Sprint(i)}
			for n, s := range q.Sessions {
				if s.Name == long && n%2 == i {
					a.Present = append(a.Present, presence.Present{Session: n, Ago: 5})
				}
			}
			return a
		})
	}
	for i, a := range ask(t, nc, q, 2) {
		if a.Edge != fmt.Sprint(i) || len(a.Present) != presence.MaxSessions/2 || a.Present[0] != (presence.Present{Session: i, Ago: 5}) {
			t.Errorf("edge %s says %v", a.Edge, a.Present)
		}
	}
}

func TestAnAnswerThatMakesNoSenseIsNone(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Connect()
	for _, data := range []string{"{", "{}", `{"edge":"e","present":[{"session":1}]}`, `{"edge":"e","present":[{"session":-1}]}`, `{"edge":"e","present":[{"session":0,"ago":-1}]}`} {
		sub, err := srv.Connect().Subscribe(presence.Subject, func(m *nats.Msg) { _ = m.Respond([]byte(data)) })
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); ; {
			_, err := presence.Ask(t.Context(), nc, presence.Question{Sessions: []presence.Session{{Name: "s"}}}, time.Second)
			if errors.Is(err, presence.ErrUnknown) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", data, err)
			}
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	serve(t, srv.Connect(), func(presence.Question) presence.Answer { return presence.Answer{Edge: "e"} })
	if _, err := presence.Ask(ctx, nc, presence.Question{}, time.Second); !errors.Is(err, presence.ErrUnknown) {
		t.Errorf("no time to ask: %v", err)
	}
	nc.Close()
	if _, err := presence.Ask(t.Context(), nc, presence.Question{}, time.Second); !errors.Is(err, presence.ErrUnknown) {
		t.Errorf("no connection: %v", err)
	}
}
