package bridge

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/bridge/records"
	"rejoin/services/bridge/standby"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/presence"
	"rejoin/shared/quota"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestIdle_SessionWithOpenCall(t *testing.T) {
	t.Parallel()
	s, up, _ := bridged(t, newServer(t))
	up.hangs("hang")
	busy, idle := s.ready(t), s.ready(t)
	s.request(t, busy, "1", "hang")
	q := presence.Question{Sessions: []presence.Session{{Name: idle}, {Name: busy}, {Name: "unknown"}}}
	var answers []presence.Answer
	waittest.Until(t, "there is an answer", func() bool {
		var err error
		answers, err = presence.Ask(waittest.Context(t), s.b.Conn, q, time.Second)
		return err == nil && len(answers) == 1
	})
	if diff := cmp.Diff([]presence.Present{{Session: 1}}, answers[0].Present); diff != "" {
		t.Error(diff)
	}
}

// withRecordedCall returns a bridge with a call of the method "hang" that does not end, and is recorded.
func withRecordedCall(t *testing.T, options ...nats.Option) (s *system, up *server, in *instance, name, stream string) {
	t.Helper()
	s, up = newSystem(t, eventlog.Settings{}), newServer(t)
	up.hangs("hang")
	s.options = options
	in = s.start(t, testConfig(up.URL))
	s.options = nil
	name = s.ready(t)
	stream, _ = s.request(t, name, "1", "hang")
	s.isRecorded(t, name, stream)
	return s, up, in, name, stream
}

// isRecorded waits until a call is written down for the next bridge.
func (s *system) isRecorded(t *testing.T, name, stream string) {
	t.Helper()
	waittest.Until(t, "the call is written down", func() bool {
		_, err := s.records(t).KV.Get(waittest.Context(t), records.Key(name, stream))
		return err == nil
	})
}

// A bridge that stops gives its name up. One without a connection may reconnect.
func TestBridge_NameIsInUse(t *testing.T) {
	t.Run("until it stops", func(t *testing.T) { testNameInUse(t, 1, nil, func(in *instance) { in.stop() }) })
	link := &natstest.Link{}
	t.Run("until it is cut off", func(t *testing.T) { testNameInUse(t, standby.StandbyQuestions, link, func(*instance) { link.Cut() }) })
}

// testNameInUse has a second bridge wait for a first one. After end, the second asks so many questions until it takes
// the name.
func testNameInUse(t *testing.T, questions int, link *natstest.Link, end func(*instance)) {
	t.Helper()
	t.Parallel()
	var options []nats.Option
	if link != nil {
		options = append(options, nats.SetCustomDialer(link))
	}
	s, up, first, name, stream := withRecordedCall(t, options...)
	asksAgain := make(chan chan time.Time)
	second := s.launch(t, testConfig(up.URL), func(second *Service) {
		second.host.Times.After = func(d time.Duration) <-chan time.Time {
			if d != standby.AliveEvery {
				return time.After(d)
			}
			again := make(chan time.Time)
			select {
			case asksAgain <- again:
			case <-t.Context().Done():
			}
			return again
		}
	})
	again := waittest.Receive(t, "the second has asked", asksAgain)
	close(again)
	again = waittest.Receive(t, "the second has asked again", asksAgain)
	if second.taken.Load() {
		t.Error("both are open")
	}
	wantMessages(t, s.messages(t, name, stream))
	end(first)
	s.isAway(t, first)
	for range questions - 1 {
		close(again)
		again = waittest.Receive(t, "the second has asked again", asksAgain)
	}
	if second.taken.Load() {
		t.Error("the second did not wait for the first to come back")
	}
	close(again)
	waittest.Until(t, "the second is open", second.taken.Load)
	wantError(t, s.finished(t, name, stream), 1, "1")
}

// hidden has a starting bridge get no answer from a running one, as if that were paused or cut off.
func hidden(s *Service) { s.host.Times.Alive = time.Nanosecond }

// wantReplaced waits until a bridge has ended since another one has its name.
func (in *instance) wantReplaced(t *testing.T) {
	t.Helper()
	if err := waittest.Receive(t, "the bridge has ended", in.ended); !errors.Is(err, ErrReplaced) {
		t.Errorf("it ended with %v", err)
	}
	in.ended <- nil // for its cleanup
}

// An edge asks about a call that runs. A bridge that does not know the call ends it.
func TestBridge_NameIsTakenDuringAPause(t *testing.T) {
	t.Parallel()
	s, up, first, name, stream := withRecordedCall(t)
	s.start(t, testConfig(up.URL), hidden)
	first.wantReplaced(t)
	wantError(t, s.finished(t, name, stream), 1, "1")

	stream, _ = s.request(t, name, "2", "hang")
	for range 8 {
		s.do(t, rpc.Ask{Action: rpc.Check, Session: name, Stream: stream})
	}
	if all, final := s.read(t, name, stream); final {
		t.Errorf("the call was ended with %v", all)
	}
}

func TestBridge_NameIsTakenWhileItWasCutOff(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	link := &natstest.Link{}
	s.options = []nats.Option{nats.SetCustomDialer(link)}
	first := s.start(t, testConfig(up.URL))
	link.Cut()
	s.options = nil
	s.start(t, testConfig(up.URL))
	link.Heal()
	first.wantReplaced(t)
}

// A bridge that renews its note of a name does not overwrite the note of a bridge that takes the name meanwhile.
func TestBridge_NameIsTakenWhileItIsRenewed(t *testing.T) {
	t.Parallel()
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	subject := "$KV." + rpc.CallsBucket + ".=bridge."
	var key atomic.Pointer[string]
	s.sending(func(data []byte) {
		if to := key.Load(); to != nil && bytes.Contains(data, []byte("HPUB "+*to)) && key.CompareAndSwap(to, nil) {
			if err := s.b.Conn.Publish(*to, []byte("another")); err == nil {
				_ = s.b.Conn.Flush() // the value is looked at below
			}
		}
	})
	in := s.start(t, testConfig(up.URL))
	js := natstest.JetStream(t, s.b.Conn)
	bucket := must.Value(js.Stream(t.Context(), "KV_"+rpc.CallsBucket))(t)
	subject += event.Token(in.host.Name)
	// The bridge looks by itself now and then, and writes the name again once it is purged.
	key.Store(&subject)
	must.NoError(t, bucket.Purge(t.Context(), jetstream.WithPurgeSubject(subject))) // the note has expired
	if err := in.name.Check(t.Context()); err == nil {
		t.Error("the name is this bridge's")
	}
	if msg, err := bucket.GetLastMsgForSubject(t.Context(), subject); err != nil || string(msg.Data) != "another" {
		t.Errorf("the name is that of %q, %v", msg.Data, err)
	}
	in.wantReplaced(t)
}

// A bridge that stops answers the requests in its inbox at once: no other bridge gets them, and an edge would wait long.
func TestBridge_StopsWhileItIsAsked(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	answers := must.Value(s.b.Conn.SubscribeSync(nats.NewInbox()))(t)
	var stopping atomic.Bool
	var name string
	s.sending(func(data []byte) {
		if !bytes.Contains(data, []byte("UNSUB")) || !stopping.CompareAndSwap(true, false) {
			return
		}
		for _, subject := range []string{rpc.OpenSubject, rpc.Subject(name)} {
			if err := errors.Join(s.b.Conn.PublishRequest(subject, answers.Subject, nil), s.b.Conn.Flush()); err != nil {
				t.Error(err)
			}
		}
	})
	in := s.start(t, testConfig(up.URL))
	name = s.ready(t)
	ends := make(chan struct{})
	in.host.Go(func() { <-ends }) // some processes take long to end
	stopping.Store(true)
	stopped := background(in.stop)
	for range 2 {
		if _, err := answers.NextMsgWithContext(waittest.Context(t)); err != nil {
			t.Error(err)
		}
	}
	close(ends)
	waittest.Receive(t, "the bridge has stopped", stopped)
}

// A bridge that stops completes quick calls: no other bridge knows of them.
func TestBridge_StopsWhileItServes(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
	served, respond := make(chan struct{}), make(chan struct{})
	up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
		close(served)
		<-respond
		w.json(response(m.ID))
	})
	in := s.start(t, testConfig(up.URL), func(s *Service) { s.host.Times.Finish = waittest.Timeout })
	answer := later(func() rpc.Answer { return s.do(t, toolCall(t, "")) })
	waittest.Receive(t, "the server has the request", served)
	stopped := background(in.stop)
	waittest.Until(t, "no bridge listens", func() bool {
		_, err := s.b.Conn.RequestWithContext(waittest.Context(t), rpc.OpenSubject, nil)
		return errors.Is(err, nats.ErrNoResponders)
	})
	close(respond)
	wantStatus(t, waittest.Receive(t, "the edge has the answer", answer), http.StatusOK, `"id":1`)
	waittest.Receive(t, "the bridge has stopped", stopped)
}

// A request that a bridge has not begun when it stops is answered as not taken: the edge asks the next bridge.
func TestBridge_StopsBeforeItBegins(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	in := s.start(t, testConfig(up.URL), func(s *Service) { s.host.Times.Finish = 0 })
	ask := rpc.Ask{Action: rpc.Post, Session: s.open(t), Stream: newStream(t, "1"), Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"quick"}`)}
	came := make(chan struct{})
	note := sync.OnceFunc(func() { close(came) })
	in.confirm.Store(new(func(context.Context) error {
		note()
		<-in.host.Life.Done()
		return t.Context().Err() // the name is this bridge's
	}))
	answer := later(func() rpc.Answer { return s.do(t, ask) })
	waittest.Receive(t, "the bridge has the request", came)
	in.stop()
	if a := waittest.Receive(t, "the edge has the answer", answer); !a.NotTaken {
		t.Errorf("the answer is %d %s", a.Status, a.Data)
	}
	s.start(t, testConfig(up.URL))
	wantStatus(t, s.do(t, ask), http.StatusAccepted)
	wantMessages(t, s.finished(t, ask.Session, ask.Stream), response("1"))
}

// An answer that the bridge has while NATS is down, or just after that, reaches its edge, also if the edge connects later
// than the bridge.
func TestBridge_AnswersAfterAnOutage(t *testing.T) {
	for _, during := range []bool{true, false} {
		s, up := newSystem(t, eventlog.Settings{}), newStateless(t)
		served, respond := make(chan struct{}, 1), make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
			served <- struct{}{}
			<-respond
			w.json(response(m.ID))
		})
		link := &natstest.Link{}
		edge := s.srv.Connect(nats.SetCustomDialer(link))
		in := s.start(t, testConfig(up.URL), func(s *Service) {
			s.host.Memory = quota.NewPool(1 << 20)
			s.host.Times.After = func(time.Duration) <-chan time.Time { // the bridge is connected, and has answered
				link.Heal()
				waittest.Until(t, "the edge is connected", func() bool { return edge.FlushTimeout(time.Second) == nil })
				now := make(chan time.Time, 1)
				now <- time.Time{}
				return now
			}
		})
		answer := later(func() rpc.Answer {
			a, err := toolCall(t, "").Do(waittest.Context(t), edge)
			if err != nil {
				t.Error(err)
			}
			return a
		})
		waittest.Receive(t, "the server has the request", served)
		link.Cut()
		s.srv.Stop()
		waittest.Until(t, "the bridge is not connected", func() bool { return !in.b.Conn.IsConnected() })
		if during {
			close(respond)
			waittest.Until(t, "the bridge has the answer", func() bool { return in.metric(t, "answers_total", "request", "2xx") == 1 })
			waittest.Until(t, "the answer counts", func() bool { return in.host.Memory.Used() > 0 })
		}
		s.srv.Start()
		if !during {
			waittest.Until(t, "the bridge is connected", in.b.Conn.IsConnected)
			close(respond)
		}
		wantStatus(t, waittest.Receive(t, "the edge has the answer", answer), http.StatusOK, `"id":1`)
	}
}

// isAway waits until NATS reports that a bridge is unavailable. An earlier question would reach a bridge that does
// not answer any more.
func (s *system) isAway(t *testing.T, in *instance) {
	t.Helper()
	waittest.Until(t, "NATS says that the bridge is away", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.b.Conn.RequestWithContext(ctx, standby.AliveSubject(in.host.Name), nil)
		return errors.Is(err, nats.ErrNoResponders)
	})
}
