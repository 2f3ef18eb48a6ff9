package bridge

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/shared/clocks"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

func TestPublish_UnknownOutcomeAfterKeyExpired(t *testing.T) {
	s, _, in, name := begun(t)
	w := call.NewWriter(in.host, name, s.lifeOf(t, name), "st")
	first := must.Value(w.Put(t.Context(), call.Item{Data: []byte(note(1))}))(t)
	// An attempt without an answer, whose key is another one by now, and many later messages of others.
	for n := range 502 {
		data := "{}"
		if n == 501 {
			data = note(2)
		}
		must.Value(s.b.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: w.Life, Sole: true, Stream: "st", Data: []byte(data)}))(t)
	}
	in.host.Times.Doubt = -1
	for n := 2; n <= 3; n++ {
		if sequence, err := w.Put(t.Context(), call.Item{Data: []byte(note(n))}); err != nil || sequence <= first {
			t.Fatal(sequence, err)
		}
	}
	// The same message once more is another one.
	must.Value(w.Put(t.Context(), call.Item{Data: []byte(note(3))}))(t)
	all, _ := s.read(t, name, "st")
	if all = slices.DeleteFunc(all, func(data string) bool { return data == "{}" }); !slices.Equal(all, []string{note(1), note(2), note(3), note(3)}) {
		t.Errorf("the log has %v", all)
	}
}

// The log forgets the key of an attempt while the machine sleeps, when only the wall clock continues.
func TestPublish_UnknownOutcomeAfterSleep(t *testing.T) {
	s, _, in, name := begun(t)
	w := call.NewWriter(in.host, name, s.lifeOf(t, name), "st")
	// An attempt without an answer, whose key is another one by now.
	must.Value(s.b.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: w.Life, Sole: true, Stream: "st", Data: []byte(note(1))}))(t)
	wall := time.Now()
	in.host.Times.Now = clocks.New(func() time.Time {
		wall = wall.Add(in.host.Times.Doubt + 1) // since it was read last
		return wall
	})
	must.Value(w.Put(t.Context(), call.Item{Data: []byte(note(1))}))(t)
	wantMessages(t, s.messages(t, name, "st"), note(1))
}

// While the log cannot be asked whether an attempt was stored, none is made.
func TestPublish_UnknownOutcomeWithoutTheLog(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	var lost atomic.Bool // are requests to the API of JetStream; messages to store are not
	s.sending(func(data []byte) {
		for lost.Load() && replace(data, "$JS.API.", "$NO.API.") { // which has no responders
		}
	})
	in := s.start(t, testConfig(up.URL))
	name := s.ready(t)
	w := call.NewWriter(in.host, name, s.lifeOf(t, name), "st")
	must.Value(w.Put(t.Context(), call.Item{Data: []byte(note(1))}))(t)
	// An attempt without an answer, whose key is another one by now.
	must.Value(s.b.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: w.Life, Sole: true, Stream: "st", Data: []byte(note(2))}))(t)
	in.host.Times.Doubt = -1
	lost.Store(true)
	put := later(func() error { return second(w.Put(t.Context(), call.Item{Data: []byte(note(2))})) })
	waittest.Until(t, "the message is not stored yet, or stored twice", func() bool { return in.metric(t, "publish_retries_total") > 0 || len(put) > 0 })
	lost.Store(false)
	must.NoError(t, waittest.Receive(t, "the message is stored", put))
	wantMessages(t, s.messages(t, name, "st"), note(1), note(2))
}

func TestPublish_SessionEnds(t *testing.T) {
	s, _, in := bridged(t, newServer(t))
	h := in.table.Session(s.ready(t))
	s.srv.Stop()
	put := later(func() error { return second(call.New(h.Scope, "st", nil).Put(call.Item{Data: []byte(note(1))})) })
	waittest.Until(t, "an attempt has failed", func() bool { return in.metric(t, "publish_retries_total") > 0 })
	h.Finish(host.ErrEnded)
	if err := <-put; !errors.Is(err, call.ErrClosed) {
		t.Errorf("it ends with %v", err)
	}
}
