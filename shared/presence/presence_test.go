package presence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/presence"
	"rejoin/shared/scatter"
	"rejoin/shared/scatter/scattertest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// serve runs an edge that answers.
func serve(t *testing.T, nc *nats.Conn, answer func(presence.Question) presence.Answer) {
	t.Helper()
	scattertest.Serve(t, func(ctx context.Context) error { return presence.Serve(ctx, nc, answer) })
}

// ask asks until the answers, or an error, are as they should be.
func ask(t *testing.T, nc *nats.Conn, q presence.Question, ok func([]presence.Answer, error) bool) []presence.Answer {
	t.Helper()
	return scattertest.Until(t, func() ([]presence.Answer, error) {
		return presence.Ask(t.Context(), nc, q, 100*time.Millisecond)
	}, ok)
}

func TestAsk_EveryEdge(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	long := strings.Repeat(`"<`, 64)
	q := presence.Question{Sessions: slices.Repeat([]presence.Session{{Name: long, Within: 1 << 40}}, presence.MaxSessions)}
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
	answers := ask(t, nc, q, func(answers []presence.Answer, _ error) bool { return len(answers) == 2 })
	slices.SortFunc(answers, func(a, b presence.Answer) int { return strings.Compare(a.Edge, b.Edge) })
	for i, a := range answers {
		if a.Edge != fmt.Sprint(i) || len(a.Present) != presence.MaxSessions/2 || a.Present[0] != (presence.Present{Session: i, Ago: 5}) {
			t.Errorf("edge %s says %v", a.Edge, a.Present)
		}
	}
}

// An invalid answer may hide a client: other answers without clients are no result then.
func TestAsk_InvalidAnswer(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	serve(t, srv.Connect(), func(presence.Question) presence.Answer { return presence.Answer{Edge: "other"} })
	ask(t, nc, presence.Question{}, func(answers []presence.Answer, _ error) bool { return len(answers) == 1 })
	for _, data := range []string{"{", "{}", `{"edge":"e","present":[{"session":1}]}`, `{"edge":"e","present":[{"session":-1}]}`, `{"edge":"e","present":[{"session":0,"ago":-1}]}`} {
		sub := must.Value(srv.Connect().Subscribe(presence.Subject, func(m *nats.Msg) { _ = m.Respond([]byte(data)) }))(t)
		ask(t, nc, presence.Question{Sessions: []presence.Session{{Name: "s"}}}, func(answers []presence.Answer, err error) bool {
			return len(answers) == 0 && errors.Is(err, scatter.ErrUnknown)
		})
		must.NoError(t, sub.Unsubscribe())
	}
}
