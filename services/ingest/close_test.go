package ingest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"rejoin/shared/auth/authtest"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

func TestClose_Writes(t *testing.T) {
	s, in := started(t)
	in.post(t, "a", "u", ping("1")).stored(t, false)
	in.post(t, "b", "u", ping("1")).stored(t, false)
	in.post(t, "b", "%2A", ping("1")).stored(t, false)
	for _, step := range []struct {
		path   string
		status int
		writes []string // after the session's life
	}{
		{"nobody", 404, nil},
		{"nobody/streams/t", 404, nil},
		{"a?clear=false", 204, []string{"=seal", "=end.u", "=end"}},
		{"a", 204, nil},
		{"a/streams/u", 204, nil},
		{"a?clear=true", 204, []string{"=clear"}},
		{"a?clear=true", 204, nil},
		{"b/streams/%2A", 204, []string{"=end.=2A"}},
		{"b/streams/%2A", 204, nil},
		{"b/streams/t?clear=true", 204, []string{"=end.t", "=clear.t"}},
		{"b?clear=true", 204, []string{"=seal", "=end.u", "=end", "=clear"}},
		{"b", 204, nil},
	} {
		before := len(s.entries(t))
		a := in.close(t, step.path)
		if a.status != step.status || (a.status == 204) != (len(a.body) == 0) {
			t.Errorf("%s: %d %s", step.path, a.status, a.body)
		}
		if a.status == 404 {
			a.expect(t, 404, "not_found")
		}
		var wrote []string
		for _, e := range s.entries(t)[before:] {
			wrote = append(wrote, strings.SplitN(e.RawSubject, ".", 5)[4])
		}
		if !slices.Equal(wrote, step.writes) {
			t.Errorf("%s wrote %q, want %q", step.path, wrote, step.writes)
		}
	}
}

// ways are the ways to publish: each returns the status and the code of the problem.
var ways = map[string]func(t *testing.T, s *system, in *instance, session, stream string) (status int, code string){
	"one message": overHTTP("", asJSON, string(ping("2"))),
	"array":       overHTTP("", asMessages, "["+string(ping("2"))+","+string(ping("3"))+"]"),
	"NDJSON":      overHTTP("", asNDJSON, string(ping("2"))+"\n"+string(ping("3"))),
	"NATS":        onNATS(string(ping("2"))),
	"NATS, array": onNATS("["+string(ping("2"))+","+string(ping("3"))+"]", "Content-Type", asMessages),
}

func overHTTP(query, media, body string) func(*testing.T, *system, *instance, string, string) (int, string) {
	return func(t *testing.T, _ *system, in *instance, session, stream string) (int, string) {
		t.Helper()
		a := in.send(t, http.MethodPost, eventsOf(session, stream)+query, []byte(body), "Content-Type", media)
		return a.status, a.Code
	}
}

func onNATS(data string, headers ...string) func(*testing.T, *system, *instance, string, string) (int, string) {
	return func(t *testing.T, s *system, _ *instance, session, stream string) (int, string) {
		t.Helper()
		reply := request(t, s.b.Conn, "mcp.ingest."+session+"."+stream, []byte(data), headers...)
		if reply.Header.Get(micro.ErrorCodeHeader) == "" {
			return http.StatusOK, string(reply.Data)
		}
		var p struct {
			Status int
			Code   string
		}
		must.NoError(t, json.Unmarshal(reply.Data, &p))
		return p.Status, p.Code
	}
}

// An ingest that pauses has a copy of the registry in which the stream is open.
func TestPublish_RefusedAfterEndWhileCopyIsOld(t *testing.T) {
	s, in := started(t)
	var names []string
	for way := range ways {
		names = append(names, strings.NewReplacer(" ", "", ",", "").Replace(way))
	}
	for _, name := range names {
		for _, session := range []string{name, name + "2"} {
			for _, stream := range []string{"t", "u"} {
				in.post(t, session, stream, ping("1")).stored(t, false)
			}
		}
	}
	in.freeze()
	for _, name := range names {
		for session, stream := range map[string]string{name: "t", name + "2": ""} {
			must.NoError(t, s.b.Sessions.End(waittest.Context(t), session, stream, false))
		}
	}
	before := len(s.entries(t))
	for way, publish := range ways {
		t.Run(way, func(t *testing.T) {
			name := strings.NewReplacer(" ", "", ",", "").Replace(way)
			if status, code := publish(t, s, in, name, "t"); status != http.StatusConflict || code != "stream_closed" {
				t.Errorf("after the stream's end: %d %s", status, code)
			}
			for _, stream := range []string{"t", "u", "new"} { // a birth is refused too
				if status, code := publish(t, s, in, name+"2", stream); status != http.StatusConflict || code != "session_closed" {
					t.Errorf("%s after the session's end: %d %s", stream, status, code)
				}
			}
		})
	}
	if all := s.entries(t)[before:]; len(all) != 0 {
		t.Errorf("stored: %+v", all)
	}
	if status, code := ways["one message"](t, s, in, names[0], "u"); status != http.StatusCreated {
		t.Errorf("a stream that is open: %d %s", status, code)
	}
}

// The results of each message are a 200 that was begun before the log refused anything.
func TestPublish_EachResultAfterEndWhileCopyIsOld(t *testing.T) {
	s, in := started(t)
	in.post(t, "s", "t", ping("1")).stored(t, false)
	in.freeze()
	must.NoError(t, s.b.Sessions.End(waittest.Context(t), "s", "t", false))
	sum := in.postBatchEach(t, batchPath, string(ping("2"))+"\n"+string(ping("3")))
	if sum.Accepted+sum.Refused+sum.Unknown != 0 || sum.Stopped == nil || sum.Stopped.Index != 0 || sum.Stopped.Code != "stream_closed" {
		t.Errorf("%+v", sum)
	}
	// A client that repeats the stopped messages is refused for good.
	again := in.send(t, http.MethodPost, batchPath+"?results=each", ping("2"), "Content-Type", asNDJSON)
	again.expect(t, http.StatusConflict, "stream_closed")
	if sum := in.postBatchEach(t, strings.Replace(batchPath, "/t/", "/u/", 1), string(ping("2"))); sum.Accepted != 1 {
		t.Errorf("another stream: %+v", sum)
	}
}

// A repeat of a message that was stored before the end is a duplicate while the log knows its key. An
// ingest that knows of the end does not ask the log.
func TestPublish_RepeatAfterEnd(t *testing.T) {
	_, in := started(t)
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k").stored(t, false)
	refused := func(code string, keys ...string) {
		t.Helper()
		for _, key := range keys {
			a := in.post(t, "s", "t", ping("1"), "Idempotency-Key", key)
			a.expect(t, http.StatusConflict, code)
			if !strings.Contains(a.Detail, "earlier attempt with the same Idempotency-Key may have been stored") {
				t.Errorf("with a key %s", a.body)
			}
		}
		a := in.post(t, "s", "t", ping("1"))
		a.expect(t, http.StatusConflict, code)
		if a.Detail != "" {
			t.Errorf("without a key %s", a.body)
		}
	}
	in.close(t, "s/streams/t").got(t, http.StatusNoContent)
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k").stored(t, true)
	refused("stream_closed", "another")
	in.close(t, "s").got(t, http.StatusNoContent)
	refused("session_closed", "k", "another")
}

// openAgain ends a session, removes it as the janitor does, and opens another one of its
// name.
func (s *system) openAgain(t *testing.T, name, owner string) session.Record {
	t.Helper()
	ctx := waittest.Context(t)
	must.NoError(t, s.b.Sessions.End(ctx, name, "", false))
	rec := must.Value(s.b.Sessions.Get(ctx, name))(t)
	must.NoError(t, errors.Join(eventlogtest.Forget(ctx, s.b.Log, name), s.b.Sessions.Remove(ctx, rec)))
	now, err := s.b.Sessions.Create(ctx, session.New(name, owner, nil, rec.Created))
	if err != nil || now.Life == rec.Life {
		t.Fatalf("%+v, %v", now, err)
	}
	return now
}

func TestPublish_SessionOpenedAgainWhileCopyIsOld(t *testing.T) {
	s, in := started(t)
	for _, name := range []string{"one", "array", "nats"} {
		in.post(t, name, "t", ping("1")).stored(t, false)
	}
	in.freeze()
	lives := map[string]string{}
	for _, name := range []string{"one", "array", "nats"} {
		lives[name] = s.openAgain(t, name, "").Life
	}
	before := len(s.events(t))
	for _, way := range []struct{ name, session string }{{"array", "array"}, {"NATS", "nats"}} {
		if status, code := ways[way.name](t, s, in, way.session, "t"); status != http.StatusServiceUnavailable || code != "unavailable" {
			t.Errorf("%s: %d %s", way.name, status, code)
		}
	}
	if n := len(s.events(t)); n != before {
		t.Errorf("%d events were stored", n-before)
	}
	refused := in.metric(t, "rejoin_ingest_published_total", "unavailable")
	in.post(t, "one", "t", []byte("[\n 2]")).stored(t, false)
	if all := s.events(t); all[len(all)-1].Subject.Life != lives["one"] || string(all[len(all)-1].Data) != "[2]" {
		t.Errorf("stored as %+v", all[len(all)-1])
	}
	if in.metric(t, "rejoin_ingest_published_total", "unavailable") != refused {
		t.Error("an attempt that is repeated is counted")
	}
	if status, code := ways["array"](t, s, in, "array", "t"); status != http.StatusOK {
		t.Errorf("the array that is repeated: %d %s", status, code)
	}
}

// The copy of the registry says that the session is alice's; its name is bob's by now.
func TestCopyIsOld_NameOfAnother(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in := s.start(t, guardedConfig(t))
	alice := authtest.Of(t, "alice", "*")
	in.as(t, alice, http.MethodPost, "/v1/sessions", `{"session":"s"}`).got(t, http.StatusCreated)
	in.freeze()
	now := s.openAgain(t, "s", "bob")
	in.as(t, alice, http.MethodPost, eventsOf("s", "t"), string(ping("1"))).expect(t, http.StatusNotFound, "not_found")
	if n := len(s.events(t)); n != 0 {
		t.Errorf("%d events are stored", n)
	}
	in.as(t, alice, http.MethodDelete, "/v1/sessions/s", "").expect(t, http.StatusNotFound, "not_found")
	if rec, err := s.b.Sessions.Get(waittest.Context(t), "s"); err != nil || rec.State != session.Open || rec.Life != now.Life {
		t.Errorf("%+v, %v", rec, err)
	}
}

// A name that becomes another's while its session is closed again keeps its session.
func TestClose_NameBecomesAnothers(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	var looks atomic.Int32 // at the session's seal, the last look of those that find its owner
	opened := make(chan session.Record, 1)
	link := natstest.Link{Before: func(data []byte) {
		switch {
		case bytes.Contains(data, []byte(".=seal\"}")):
			looks.Add(1)
		case looks.CompareAndSwap(1, 2):
			opened <- s.openAgain(t, "s", "bob")
		}
	}}
	in, alice := s.start(t, guardedConfig(t), nats.SetCustomDialer(&link)), authtest.Of(t, "alice", "*")
	in.as(t, alice, http.MethodPost, "/v1/sessions", `{"session":"s"}`).got(t, http.StatusCreated)
	in.as(t, alice, http.MethodDelete, "/v1/sessions/s", "")
	now := waittest.Receive(t, "the name is another's", opened)
	if rec, err := s.b.Sessions.Get(waittest.Context(t), "s"); err != nil || rec.State != session.Open || rec.Life != now.Life {
		t.Errorf("%+v, %v", rec, err)
	}
}
