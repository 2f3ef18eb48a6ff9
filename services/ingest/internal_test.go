package ingest

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/micro"

	"rejoin/services/ingest/problem"
	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// handlersOwn is a request whose methods that keep state for NATS's service must not be called,
// since only its handler's goroutine may call them.
type handlersOwn struct {
	micro.Request

	t     *testing.T
	reply string
}

func (r handlersOwn) Reply() string { return r.reply }

func (r handlersOwn) Respond([]byte, ...micro.RespondOpt) error {
	r.t.Error("Respond is called")
	return nil
}

func (r handlersOwn) RespondJSON(any, ...micro.RespondOpt) error {
	r.t.Error("RespondJSON is called")
	return nil
}

func (r handlersOwn) Error(string, string, []byte, ...micro.RespondOpt) error {
	r.t.Error("Error is called")
	return nil
}

func TestRefuse_FromAnyGoroutine(t *testing.T) {
	nc := natstest.Start(t).Connect()
	s := &Service{backend: &backend.Backend{Conn: nc}}
	inbox := nc.NewRespInbox()
	answers := must.Value(nc.SubscribeSync(inbox))(t)
	s.refuse(handlersOwn{t: t, reply: inbox}, session.ErrClosed)
	s.respondJSON(handlersOwn{t: t, reply: inbox}, 1)
	for _, want := range []string{string(web.CodeSessionClosed), ""} {
		if msg, err := answers.NextMsg(time.Minute); err != nil || msg.Header.Get(micro.ErrorHeader) != want {
			t.Errorf("%+v, %v; want %q", msg, err, want)
		}
	}
}

// Only a text in NDJSON waits for as long as its client lets it; each message for so long.
func TestRate_BatchWaitsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for slow, want := range map[slowness]int{slowNever: 0, slowOnce: 10, slowEach: 10} {
			b := batch{slow: slow}
			tries := 0
			err := b.pace(func() error { tries++; return &problem.RateError{Of: "session", What: "messages", Wait: time.Second} })
			if _, ok := errors.AsType[*problem.RateError](err); !ok || tries != want+1 {
				t.Errorf("%d: %d tries, %v", slow, tries, err)
			}
			if err := b.pace(func() error { return nil }); err != nil {
				t.Errorf("%d: %v", slow, err)
			}
		}
		over := make(chan struct{})
		close(over)
		for _, b := range []*batch{{trouble: over}, {stopping: over}, {over: over}} {
			b.slow = slowEach
			if err := b.pace(func() error { return &problem.RateError{Of: "session", What: "messages", Wait: time.Second} }); !errors.Is(err, errHalted) {
				t.Error(err)
			}
		}
	})
}

func TestPublish_GenerationOfSequence(t *testing.T) {
	gens := []event.Generation{{ID: "b", Start: 5}, {ID: "c", Start: 8}, {ID: "d", Start: 8}}
	for at, want := range map[eventlog.Ack]string{
		{Sequence: 1}: "b", {Sequence: 5}: "b", {Sequence: 7}: "b", {Sequence: 8}: "d", {Sequence: 100}: "d",
		{Sequence: 8, Generation: "b"}: "b", {Sequence: 9, Generation: "c"}: "c", {Sequence: 7, Generation: "d"}: "b", {Sequence: 9, Generation: "merged"}: "d",
	} {
		if got := generationOf(at, gens); got != want {
			t.Errorf("%+v is in %s, want %s", at, got, want)
		}
	}
}
