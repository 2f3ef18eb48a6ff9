package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/inspect"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/scatter"
	"rejoin/shared/scatter/scattertest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// serve runs an edge that answers.
func serve(t *testing.T, nc *nats.Conn, answer func(inspect.Question) inspect.Answer) {
	t.Helper()
	scattertest.Serve(t, func(ctx context.Context) error { return inspect.Serve(ctx, nc, answer) })
}

// ask asks until so many answer.
func ask(t *testing.T, nc *nats.Conn, q inspect.Question, edges int) []inspect.Answer {
	t.Helper()
	answers := until(t, nc, q, edges, func(answers []inspect.Answer, _ error) bool { return len(answers) == edges })
	slices.SortFunc(answers, func(a, b inspect.Answer) int { return strings.Compare(a.Edge, b.Edge) })
	return answers
}

// until asks until the answers, or an error, are as they should be.
func until(t *testing.T, nc *nats.Conn, q inspect.Question, known int, ok func([]inspect.Answer, error) bool) []inspect.Answer {
	t.Helper()
	return scattertest.Until(t, func() ([]inspect.Answer, error) {
		return inspect.Ask(t.Context(), nc, q, known, time.Second)
	}, ok)
}

// The longest names, in which every character is one that JSON escapes.
var long = strings.Repeat(`"\`, 64)

func TestAsk_LargestAnswers(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	q := inspect.Question{About: inspect.Happenings, Sessions: slices.Repeat([]string{long}, inspect.MaxSessions), Limit: inspect.MaxItems}
	sure, far := false, time.Date(2026, 12, 31, 23, 59, 59, 999999999, time.UTC)
	happening := inspect.Happening{
		Time: far, What: inspect.Connected, Session: long, Stream: long, Connection: 1 << 63, Address: "ffff:ffff:ffff:ffff::", Came: inspect.FromWindow,
		Reason: "rolled_back", Certain: &sure, Requested: strings.Repeat("\x00", inspect.MaxRequested), Cursor: 1 << 63, Events: 1 << 63,
	}
	for i := range 2 {
		serve(t, srv.Connect(), func(q inspect.Question) inspect.Answer {
			return inspect.Answer{Edge: fmt.Sprint(i), Of: make([]int, len(q.Sessions)), Happenings: slices.Repeat([]inspect.Happening{happening}, q.Limit)}
		})
	}
	for i, a := range ask(t, nc, q, 2) {
		if a.Edge != fmt.Sprint(i) || len(a.Happenings) != inspect.MaxItems || a.Happenings[0].Stream != long || *a.Happenings[0].Certain {
			t.Errorf("edge %s says %v", a.Edge, a.Happenings)
		}
	}
}

// With only an invalid answer the result is unknown; beside a valid one it is left out.
func TestAsk_InvalidAnswer(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc, q := srv.Connect(), inspect.Question{About: inspect.Clients, Sessions: []string{"s"}}
	for _, data := range []string{"{}", `{"edge":"e"}`, `{"edge":"e","of":[1,2]}`, "{"} {
		sub := must.Value(srv.Connect().Subscribe(inspect.Subject, func(m *nats.Msg) { _ = m.Respond([]byte(data)) }))(t)
		until(t, nc, q, 1, func(_ []inspect.Answer, err error) bool { return errors.Is(err, scatter.ErrUnknown) })
		if data != "{" {
			must.NoError(t, sub.Unsubscribe())
		}
	}
	serve(t, srv.Connect(), func(inspect.Question) inspect.Answer { return inspect.Answer{Edge: "e", Of: []int{0}} })
	ask(t, nc, q, 1)
}

func TestParse_Invalid(t *testing.T) {
	for _, data := range []string{"", "[]", "{}", `{"about":"all"}`, `{"about":"gaps","limit":501}`, `{"about":"gaps","limit":-1}`} {
		if _, err := inspect.Parse([]byte(data)); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, data := range []string{"", "{}", `{"about":"gaps"}`, `{"about":"connections","session":"s","limit":5}`, `{"about":"clients","sessions":["a","b"]}`} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := inspect.Parse(data)
		if err != nil {
			if !errors.Is(err, inspect.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if len(q.Sessions) > inspect.MaxSessions || q.Limit < 0 || q.Limit > inspect.MaxItems {
			t.Fatalf("%+v is taken", q)
		}
		again := must.Value(json.Marshal(q))(t)
		if _, err := inspect.Parse(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
