package bridge

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/daemon"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/flagtype"
	"rejoin/shared/mcp"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// resumable is a server whose calls of "long" can be resumed: the test controls their
// progress.
type resumable struct {
	*server
	step    chan struct{} // each lets the call send one more note; closed, its response
	ids     int           // so many notes have an event ID
	serving atomic.Int64
}

// left waits until no call of a stopped bridge makes progress.
func (r *resumable) left(t *testing.T) {
	t.Helper()
	waittest.Until(t, "the server has noticed that the bridge has gone", func() bool { return r.serving.Load() == 0 })
}

func newResumable(t *testing.T, notes int) *resumable {
	t.Helper()
	r := &resumable{server: newServer(t), step: make(chan struct{}), ids: notes}
	var id string
	serve := func(w *writing, req *http.Request, from int) {
		r.serving.Add(1)
		defer r.serving.Add(-1)
		for n := from; n < notes; n++ {
			select {
			case <-r.step:
			case <-req.Context().Done():
				return
			}
			w.send(string(rune('a' + n))[:min(1, max(0, r.ids-n))], note(n))
		}
		w.send("end", response(id))
	}
	r.handle("long", func(w *writing, req *http.Request, m rpc.Message) {
		id = string(m.ID)
		w.stream()
		serve(w, req, 0)
	})
	r.onGet(func(w *writing, req *http.Request) {
		last := req.Header.Get("Last-Event-ID")
		if last == "" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.stream()
		serve(w, req, int(last[0]-'a')+1)
	})
	return r
}

// stoppedDuringCall stops a bridge when some notes of a call are stored, and returns the call's session and stream.
func (s *system) stoppedDuringCall(t *testing.T, up *resumable, notes int) (name, stream string) {
	t.Helper()
	first := s.start(t, testConfig(up.URL))
	name = s.ready(t)
	stream, _ = s.request(t, name, "1", "long")
	for range notes {
		up.step <- struct{}{}
	}
	s.has(t, name, stream, notes)
	first.stop()
	up.left(t)
	return name, stream
}

// The index of sessions is written when it can be: a bridge may have been killed before.
func TestRestart_SessionMissingInTheIndex(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newResumable(t, 2)
	name, stream := s.stoppedDuringCall(t, up, 1)
	index, err := natstest.JetStream(t, s.b.Conn).KeyValue(waittest.Context(t), session.Bucket)
	if err == nil {
		err = index.Delete(waittest.Context(t), event.Token(name))
	}
	must.NoError(t, err)

	other := testConfig(up.URL)
	other.BridgeName = "other"
	s.start(t, other) // leaves the record of the call alone
	s.start(t, testConfig(up.URL)).wantMetric(t, 1, "takeovers_total")
	up.step <- struct{}{}
	want := []string{note(0), note(1), response("1")}
	wantMessages(t, s.finished(t, name, stream), want...)
}

// records opens the bucket of open calls.
func (s *system) records(t *testing.T) *records.Bucket {
	t.Helper()
	return must.Value(records.Open(waittest.Context(t), s.b, daemon.NewEnv(nil).Log))(t)
}

// A call continues at the next bridge, with no message stored twice, and so does its session.
func TestRestart_ContinuesCalls(t *testing.T) {
	for _, ids := range []int{4, 1} { // of the server's messages all have an event ID, or only some
		s, up := newSystem(t, eventlog.Settings{}), newResumable(t, 4)
		up.ids = ids
		name, stream := s.stoppedDuringCall(t, up, 3)
		if ids == 4 { // as if the bridge had died before it wrote down the last two
			state := must.Value(s.b.Log.Look(waittest.Context(t), s.b.Log.Partition(name)))(t)
			must.NoError(t, s.records(t).Put(waittest.Context(t), records.Key(name, stream), records.Record{ID: "a", Sequence: state.Last - 2}))
		}
		second := s.start(t, testConfig(up.URL))
		for range 3 {
			up.step <- struct{}{}
		}
		want := []string{note(0), note(1), note(2), note(3), response("1")}
		wantMessages(t, s.finished(t, name, stream), want...)
		second.wantMetric(t, 1, "takeovers_total")
		// The session continues too.
		again, _ := s.request(t, name, "2", "quick")
		s.finished(t, name, again)
		waittest.Until(t, "no record is left", func() bool {
			kv, err := s.records(t).KV.ListKeys(waittest.Context(t))
			if err != nil {
				return false
			}
			n := 0
			for key := range kv.Keys() {
				if _, _, ok := records.ParseKey(key); ok { // it is of a call
					n++
				}
			}
			return n == 0
		})
	}
}

func TestRestart_CallWithoutEventIDs(t *testing.T) {
	s, up, first, name := begun(t)
	up.hangs("hang", note(0))
	stream, _ := s.request(t, name, `"q"`, "hang")
	s.receives(t, name, stream, note(0))
	s.restart(t, first)
	all := s.finished(t, name, stream)
	wantError(t, all, 2, `"q"`)
	wantHas(t, all[1], "the bridge was restarted")
}

// The calls of a take-over are read from the log in turns: each takes memory.
func TestRestart_ReloadsInTurns(t *testing.T) {
	s, up, first, name := begun(t)
	up.hangs("hang")
	stream, _ := s.request(t, name, "1", "hang")
	first.stop()
	var turns chan struct{}
	s.start(t, testConfig(up.URL), func(s *Service) {
		turns = s.host.Reloads
		for range cap(turns) {
			turns <- struct{}{}
		}
	})
	for range 100 {
		if all, _ := s.read(t, name, stream); len(all) > 0 { // it would have been read long before
			t.Fatalf("the call ended with %q", all)
		}
	}
	<-turns
	wantError(t, s.finished(t, name, stream), 1, "1")
}

// A bridge keeps the log's messages of a call only where the server may send them again.
func TestReload_KeepsWhatMayComeAgain(t *testing.T) {
	_, _, in, name := begun(t)
	h, stream := in.table.Session(name), newStream(t, "1", "2")
	w := call.NewWriter(in.host, name, h.Life, stream)
	all := []call.Item{{ID: "e1", Data: []byte(note(1))}, {ID: "e2", Data: []byte(note(2))}, {ID: "e3", Data: []byte(response("1"))}, {ID: "e4", Data: []byte(note(2))}}
	var first uint64
	for _, it := range all[:3] {
		sequence := must.Value(w.Put(waittest.Context(t), it))(t)
		if it.ID == "e1" {
			first = sequence
		}
	}
	slices.Reverse(all) // another stream of the upstream may be resumed first
	for _, tt := range []struct {
		id       string
		onDemand bool // then the cursor of another stream may be an earlier one
		want     string
	}{{"", false, ""}, {"e1", false, "e3 e2 "}, {"e1", true, "e3 e2 e1 "}} {
		ids, _ := rpc.RequestIDs(stream)
		of := call.NewScope(in.host, name, h.Life, h)
		of.OneCall = tt.onDemand
		c := call.New(of, stream, ids)
		c.StartAt(call.Cursor{ID: tt.id, Sequence: first})
		if final, err := c.ReloadOnce(waittest.Context(t)); final || err != nil {
			t.Fatal(final, err)
		}
		if left := c.IDs(); len(left) != 1 || string(left[0]) != "2" {
			t.Errorf("the requests %s have no response", left)
		}
		for _, want := range []string{tt.want, ""} { // each once
			got := ""
			for _, it := range all {
				if c.Repeated(it) {
					got += it.ID + " "
				}
			}
			if got != want {
				t.Errorf("%+v: what is repeated is %s", tt, got)
			}
		}
	}
}

// questions takes each message for a question that is not stored yet.
type questions struct {
	call.Receiver
	of *call.Scope
}

func (q questions) Take(rpc.Message, call.Item) error {
	q.of.Asking.Store(true)
	return nil
}

// The next bridge continues before a question that is not stored, and after the previous one, however soon they came.
func TestTake_QuestionSoonAfterAnother(t *testing.T) {
	_, _, in, name := begun(t)
	h := in.table.Session(name)
	c := call.New(call.NewScope(in.host, name, h.Life, h), newStream(t, "1"), nil)
	c.To = questions{of: c.Scope}
	for _, id := range []string{"e1", "e2"} {
		c.Scope.Asking.Store(false) // the previous question is stored
		must.NoError(t, c.Take(call.Item{Data: []byte(note(1)), ID: id}))
		c.Moved(id)
	}
	if at := c.Stored(); at.ID != "e1" {
		t.Errorf("it continues after %+v", at)
	}
}

// The server may send a response again that was not stored when the bridge stopped: the next bridge continues the call.
func TestStop_ResponseIsNotStored(t *testing.T) {
	for name, up := range map[string]*server{"stateless": newStateless(t), "earlier": newEarlier(t)} {
		s, respond := newSystem(t, eventlog.Settings{}), make(chan struct{})
		up.handle(mcp.MethodCallTool, func(w *writing, _ *http.Request, m rpc.Message) {
			w.stream()
			w.progress("e1", m)
			<-respond
			w.send("e2", response(m.ID))
		})
		cfg := testConfig(up.URL)
		cfg.TaskAfter = flagtype.Duration(waittest.Timeout) // it may become a task, and does not
		in := s.start(t, cfg)
		c := s.accepted(t, tasks)
		s.has(t, c.Session, c.Stream, 1)
		made := in.table.Session(c.Session).Call(c.Stream)
		s.srv.Stop()
		close(respond)
		waittest.Until(t, "an attempt to store the response has failed", func() bool { return in.metric(t, "publish_retries_total") > 0 })
		in.host.Stop(upstream.ErrStopping)
		in.host.Wait()
		continues := slices.ContainsFunc(in.table.Open(), func(c records.OpenCall) bool {
			return !made.Done() && c.Stream == made.Stream && c.ID == "e1"
		})
		if !continues {
			t.Errorf("%s: the next bridge continues %+v", name, in.table.Open())
		}
		s.srv.Start()
	}
}

func TestCheckCalls_UnknownCall(t *testing.T) {
	s, _, in, name := begun(t)
	stream := newStream(t, "1", `"b"`)
	for range 2 {
		wantStatus(t, s.do(t, rpc.Ask{Action: rpc.Check, Session: name, Stream: stream}), http.StatusAccepted)
	}
	wantError(t, s.finished(t, name, stream), 2, `"b"`)
	in.wantMetric(t, 1, "failed_calls_total", host.FailUnknown)
}

// A bridge that was killed when it had ended a part of a batch leaves the remaining requests to the next one.
func TestCheckCalls_PartOfABatch(t *testing.T) {
	s, up := newSystem(t, eventlog.Settings{}), newServer(t)
	var lost atomic.Bool // are messages about the second request
	lost.Store(true)
	s.sending(func(data []byte) {
		if lost.Load() && bytes.Contains(data, []byte(`"id":"b"`)) {
			replace(data, "HPUB ", "HPUB none") // which no stream stores
		}
	})
	in := s.start(t, testConfig(up.URL))
	h, stream := in.table.Session(s.ready(t)), newStream(t, "1", `"b"`)
	killed := call.NewScope(in.host, h.Name, h.Life, h)
	ended := background(func() {
		ids, _ := rpc.RequestIDs(stream)
		c := call.New(killed, stream, ids)
		c.ExpectNoAnswer()
		c.Lose()
	})
	waittest.Until(t, "the second error is not stored", func() bool { return in.metric(t, "publish_retries_total") > 0 })
	killed.Stop(host.ErrEnded)
	waittest.Receive(t, "the check ends", ended)
	lost.Store(false)
	wantStatus(t, h.Check(rpc.Ask{Action: rpc.Check, Session: h.Name, Stream: stream}), http.StatusAccepted)
	all, _ := s.read(t, h.Name, stream)
	wantError(t, all, 2, `"b"`)
}

func TestSession_ClosedElsewhere(t *testing.T) {
	t.Parallel()
	s, up, in, name := begun(t)
	must.NoError(t, s.b.Sessions.End(waittest.Context(t), name, "", false))
	waittest.Until(t, "the session is forgotten", func() bool { return in.metric(t, "sessions") == 0 })
	waittest.Until(t, "it has ended upstream", func() bool { return len(up.ended()) == 1 })
}

func TestTakeOver_SessionThatHasEndedInTheLog(t *testing.T) {
	s, up, first := bridged(t, newServer(t))
	ended, open := s.ready(t), s.ready(t)
	first.stop()
	must.NoError(t, s.b.Log.EndSession(waittest.Context(t), ended, s.lifeOf(t, ended))) // in the index it is open
	second := s.start(t, testConfig(up.URL))
	if second.table.Session(ended) != nil || second.table.Session(open) == nil || second.metric(t, "takeovers_total") != 1 {
		t.Errorf("%v sessions are taken over", second.metric(t, "takeovers_total"))
	}
}

// The bridge's session has ended, and its name is in use again.
func TestPatrol_LeavesNextLifeAlone(t *testing.T) {
	t.Parallel()
	s, _, in, name := begun(t)
	must.NoError(t, s.b.Sessions.End(waittest.Context(t), name, "", false))
	rec := must.Value(s.b.Sessions.Get(waittest.Context(t), name))(t)
	must.NoError(t, errors.Join(eventlogtest.Forget(waittest.Context(t), s.b.Log, name), s.b.Sessions.Remove(waittest.Context(t), rec)))
	next := must.Value(s.b.Sessions.Create(waittest.Context(t), session.New(name, "", nil, rec.Created)))(t)
	waittest.Until(t, "the session is forgotten", func() bool { return in.metric(t, "sessions") == 0 })
	if now, err := s.b.Sessions.Get(waittest.Context(t), name); err != nil || now.State != session.Open || now.Life != next.Life {
		t.Errorf("%+v, %v", now, err)
	}
}

// When the end is answered, JetStream stores nothing of the session.
func TestEnd_AnsweredWhenNothingCanBeStored(t *testing.T) {
	s, _, in, name := begun(t)
	h := in.table.Session(name)
	must.Value(call.NewStandalone(h.Scope, nil).Put(call.Item{Data: []byte(note(1))}))(t)
	s.end(t, name)
	for _, stream := range []string{rpc.Standalone, "st"} {
		if _, err := call.NewWriter(in.host, name, h.Life, stream).Put(t.Context(), call.Item{Data: []byte(note(2))}); !errors.Is(err, call.ErrClosed) {
			t.Errorf("%s: %v", stream, err)
		}
	}
	if a, err := (rpc.Ask{Action: rpc.End, Session: name}).Do(waittest.Context(t), s.b.Conn); err == nil && a.Status != http.StatusNoContent && a.Status != http.StatusNotFound {
		t.Errorf("the end that is repeated was answered %d", a.Status)
	}
}
