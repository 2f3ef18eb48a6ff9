package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/scatter/scattertest"
	"rejoin/shared/waittest"
)

// janitor runs an asker that holds some partitions: in its answers, Stored has a bit for each.
func janitor(t *testing.T, nc *nats.Conn, name string, h Holding, prepare ...func(*Asker)) (a *Asker, end func()) {
	t.Helper()
	a = New(nc, name, func() Holding { return h }, func(_ context.Context, q Question) (answer Answer) {
		for _, p := range q.Partitions {
			if slices.Contains(h.Complete, p) {
				answer.Partitions = append(answer.Partitions, p)
				answer.Stored += 1 << p
			}
		}
		for range q.Sessions {
			answer.Infos = append(answer.Infos, ledger.SessionInfo{Session: name, Owner: strings.Repeat("o", q.Limit)})
		}
		answer.Cursors = make([]CursorInfo, len(q.Cursors))
		return answer
	})
	for _, f := range prepare {
		f(a)
	}
	before := nc.NumSubscriptions()
	end = scattertest.Serve(t, a.Serve)
	waittest.Until(t, "it listens", func() bool { return nc.NumSubscriptions() == before+2 })
	return a, end
}

func holds(complete ...int) Holding { return Holding{Complete: complete} }

var all = []int{0, 1, 2, 3}

// wantSum asks until each partition is counted once.
func wantSum(t *testing.T, a *Asker, want uint64, from int) {
	t.Helper()
	waittest.Until(t, "the answers of all", func() bool {
		answers, err := a.Ask(t.Context(), Question{About: Limits}, all)
		var sum uint64
		for _, answer := range answers {
			sum += answer.Stored
		}
		return err == nil && sum == want && len(answers) == from
	})
}

// wantLacking asks until the error names the wanted partitions without an answer.
func wantLacking(t *testing.T, a *Asker, want string) {
	t.Helper()
	waittest.Until(t, want, func() bool {
		answers, err := a.Ask(t.Context(), Question{About: Limits}, all)
		return err != nil && err.Error() == want && len(answers) == 0
	})
}

func TestAsk_EachJanitorForItsOwn(t *testing.T) {
	srv := natstest.StartParallel(t)
	one, _ := janitor(t, srv.Connect(), "one", holds(0, 1))
	none, _ := janitor(t, srv.Connect(), "none", holds())
	_, end := janitor(t, srv.Connect(), "two", holds(2, 3))
	for _, a := range []*Asker{one, none} {
		wantSum(t, a, 15, 2)
	}
	end()
	wantLacking(t, one, "No janitor answers for partitions 2-3.")
	janitor(t, srv.Connect(), "three", Holding{Complete: []int{3}, Incomplete: []int{2}})
	wantLacking(t, one, "The janitor has not read the whole log yet: partition 2.")
}

// Two hold a partition for a moment when a lease changes hands.
func TestAsk_PartitionsOfTwoCountOnce(t *testing.T) {
	srv := natstest.StartParallel(t)
	one, _ := janitor(t, srv.Connect(), "one", holds(0, 1, 2))
	janitor(t, srv.Connect(), "two", holds(1, 2, 3))
	janitor(t, srv.Connect(), "three", holds(0, 1, 2, 3))
	none, _ := janitor(t, srv.Connect(), "none", Holding{Incomplete: all})
	for range 20 {
		for _, a := range []*Asker{one, none} {
			answers, err := a.Ask(t.Context(), Question{About: Limits}, all)
			if err != nil {
				continue // a machine that is slow
			}
			var sum uint64
			for _, answer := range answers {
				sum += answer.Stored
			}
			if sum != 15 {
				t.Fatalf("%+v", answers)
			}
		}
	}
	wantSum(t, one, 15, 2)
}

// Without a connection a janitor answers for the partitions that it holds.
func TestAsk_HoldsAllAsksNobody(t *testing.T) {
	srv := natstest.StartParallel(t)
	nc := srv.Connect()
	watcher := srv.Connect()
	asked := must.Value(watcher.SubscribeSync("mcp.janitor.>"))(t)
	must.NoError(t, watcher.Flush())
	a, _ := janitor(t, nc, "one", holds(all...))
	some, _ := janitor(t, nc, "two", holds(0))
	wantSum(t, a, 15, 1)
	must.NoError(t, nc.Flush()) // a question would be on its way to the watcher
	must.NoError(t, watcher.Flush())
	if n, _, err := asked.Pending(); n != 0 || err != nil {
		t.Errorf("%d questions, %v", n, err)
	}
	nc.Close()
	wantSum(t, a, 15, 1)
	wantLacking(t, some, "NATS is unavailable, and other janitors hold partitions 1-3.")
	if answers, err := some.Ask(t.Context(), Question{About: Limits}, []int{0}); err != nil || len(answers) != 1 {
		t.Errorf("%+v, %v", answers, err)
	}
}

// A janitor that holds a partition may have stopped, or give an invalid answer.
func TestAsk_SilentOrInvalidJanitor(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*nats.Msg) *nats.Msg{
		"silent": nil,
		"no JSON": func(m *nats.Msg) *nats.Msg {
			return &nats.Msg{Subject: m.Reply, Header: nats.Header{partsHeader: {"0"}}, Data: []byte("{")}
		},
		"other partitions": func(m *nats.Msg) *nats.Msg {
			return &nats.Msg{Subject: m.Reply, Header: nats.Header{partsHeader: {"0"}}, Data: []byte(`{"partitions":[0,2,3]}`)}
		},
		"fewer partitions": func(m *nats.Msg) *nats.Msg {
			return &nats.Msg{Subject: m.Reply, Header: nats.Header{partsHeader: {"0"}}, Data: []byte(`{"partitions":[]}`)}
		},
		"no number of parts": func(m *nats.Msg) *nats.Msg { return &nats.Msg{Subject: m.Reply, Data: []byte(`{"partitions":[2,3]}`)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits until its time is over
			srv := natstest.Start(t)
			other := srv.Connect()
			hold := func(m *nats.Msg) { _ = m.Respond([]byte(`{"janitor":"other","complete":[2,3]}`)) }
			must.Value(other.Subscribe(Subject, hold))(t)
			must.Value(other.Subscribe(subjectOf("other"), func(m *nats.Msg) {
				if answer != nil {
					_ = other.PublishMsg(answer(m))
				}
			}))(t)
			must.NoError(t, other.Flush())
			a, _ := janitor(t, srv.Connect(), "one", holds(0, 1))
			a.within = 100 * time.Millisecond
			wantLacking(t, a, "No janitor answers for partitions 2-3.")
			answers, err := a.Ask(t.Context(), Question{About: Cursors}, all)
			if lacking := (*Lacking)(nil); !errors.As(err, &lacking) || len(answers) != 1 {
				t.Errorf("what needs not all of them: %+v, %v", answers, err)
			}
		})
	}
}

func TestAsk_AnswerInParts(t *testing.T) {
	srv := natstest.StartParallel(t)
	a, _ := janitor(t, srv.Connect(), "none", holds())
	const size = 1000
	janitor(t, srv.Connect(), "one", holds(all...))
	q := Question{About: Infos, Sessions: slices.Repeat([]string{"s"}, MaxRows), Limit: size}
	waittest.Until(t, "1 MB", func() bool {
		answers, err := a.Ask(t.Context(), q, all)
		return err == nil && len(answers) == 1 && len(answers[0].Infos) == MaxRows && len(answers[0].Infos[MaxRows-1].Owner) == size
	})
}

func TestAsk_AnswerTooLarge(t *testing.T) {
	srv := natstest.StartParallel(t)
	a, _ := janitor(t, srv.Connect(), "none", holds())
	janitor(t, srv.Connect(), "one", holds(all...), func(a *Asker) { a.bytes = 2000 })
	q := Question{About: Infos, Sessions: []string{"s", "s"}, Limit: 1000}
	waittest.Until(t, "the answer is too large", func() bool {
		_, err := a.Ask(t.Context(), q, all)
		return errors.Is(err, ErrTooLarge)
	})
}

func TestAsk_AnswersTogetherTooLarge(t *testing.T) {
	srv := natstest.StartParallel(t)
	a, _ := janitor(t, srv.Connect(), "none", holds())
	janitor(t, srv.Connect(), "one", holds(0, 1))
	janitor(t, srv.Connect(), "two", holds(2, 3))
	a.bytes = 2000
	q := Question{About: Infos, Sessions: []string{"s"}, Limit: 1000}
	waittest.Until(t, "the answers are too large", func() bool {
		_, err := a.Ask(t.Context(), q, all)
		return errors.Is(err, ErrTooLarge)
	})
	a.bytes = maxBytes
	waittest.Until(t, "they are not", func() bool {
		answers, err := a.Ask(t.Context(), q, all)
		return err == nil && len(answers) == 2
	})
}

func TestAsk_TooManyAtOnce(t *testing.T) {
	a, _ := janitor(t, natstest.StartParallel(t).Connect(), "one", holds(0))
	for range maxAsking {
		a.asking <- struct{}{}
	}
	if _, err := a.Ask(t.Context(), Question{About: Limits}, all); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
}

// A janitor answers neither invalid questions nor those whose reply is no inbox, and begins no more sweeps
// than it may.
func TestServe_Questions(t *testing.T) {
	nc := natstest.StartParallel(t).Connect()
	begun, release := make(chan struct{}), make(chan struct{})
	a := New(nc, "one", func() Holding { return holds(all...) }, func(_ context.Context, q Question) Answer {
		if q.About == Sweep {
			begun <- struct{}{}
			<-release
		}
		return Answer{Partitions: q.Partitions, Removed: map[ledger.Cause]int{"swept": 1}}
	})
	scattertest.Serve(t, a.Serve)
	b := New(nc, "two", func() Holding { return holds() }, nil)
	sweep := func() Answer {
		answers, err := b.Ask(t.Context(), Question{About: Sweep}, all)
		for errors.As(err, new(*Lacking)) { // it did not learn the holders in time
			answers, err = b.Ask(t.Context(), Question{About: Sweep}, all)
		}
		if err != nil || len(answers) != 1 {
			t.Error(answers, err)
			return Answer{}
		}
		return answers[0]
	}
	wantSum(t, b, 0, 1) // it listens
	swept := make(chan Answer, maxSweeps)
	for range maxSweeps {
		go func() { swept <- sweep() }()
		waittest.Receive(t, "a sweep begins", begun)
	}
	if got := sweep(); got.Swept != NotBegun {
		t.Errorf("one too many: %+v", got)
	}
	elsewhere := must.Value(nc.SubscribeSync("mcp.0.>"))(t)
	for _, data := range []string{"", "{", "{}", `{"about":"limits","partitions":[0]}`} {
		must.NoError(t, nc.PublishRequest(subjectOf("one"), "mcp.0.s.life.=clear", []byte(data)))
	}
	for range 2 * maxAnswering { // those before are done by then
		wantSum(t, b, 0, 1)
	}
	if n, _, err := elsewhere.Pending(); n != 0 || err != nil {
		t.Errorf("%d answers go elsewhere, %v", n, err)
	}
	close(release)
	for range maxSweeps {
		if got := <-swept; got.Removed["swept"] != 1 {
			t.Errorf("%+v", got)
		}
	}
}

func TestHolding_InvalidSender(t *testing.T) {
	for _, h := range []Holding{{}, {Janitor: "a.b"}, {Janitor: "*"}, {Janitor: "a b"}, {Janitor: ">"}, {Janitor: "a", Complete: make([]int, maxPartitions+1)}} {
		if got := h.sender(); got != "" {
			t.Errorf("%q is a sender", got)
		}
	}
	if got := (Holding{Janitor: "ABC7"}).sender(); got != "ABC7" {
		t.Error(fmt.Sprint(got))
	}
}
