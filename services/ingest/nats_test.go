package ingest_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/session"
	"rejoin/shared/waittest"
)

// request sends a request on NATS; headers are pairs of names and values.
func request(t *testing.T, nc *nats.Conn, subject string, data []byte, headers ...string) *nats.Msg {
	t.Helper()
	msg := nats.NewMsg(subject)
	msg.Data = data
	for i := 0; i+1 < len(headers); i += 2 {
		msg.Header.Add(headers[i], headers[i+1])
	}
	reply, err := nc.RequestMsgWithContext(waittest.Context(t), msg)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	return reply
}

// A publisher that writes straight to the log asks for the session first: then a generation has begun, also
// without a janitor.
func TestNATS_SessionAfterARestart(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	s.start(t, testConfig())
	request(t, s.srv.Connect(), "mcp.ingest.s.t", ping("0"))
	s.srv.Stop()
	s.srv.Start()
	nc := s.srv.Connect()
	waittest.Until(t, "the session is answered", func() bool {
		reply, err := nc.RequestWithContext(waittest.Context(t), "mcp.ingest.s", nil)
		return err == nil && reply.Header.Get(micro.ErrorHeader) == ""
	})
	l := must.Value(eventlog.Open(waittest.Context(t), nc, slog.New(slog.DiscardHandler)))(t)
	defer l.Close()
	if state, _ := l.State(0); len(state.Generations) != 2 || state.Generation().Start != state.Last {
		t.Errorf("generations %+v, the newest entry is %d", state.Generations, state.Last)
	}
}

func TestNATS_SameAnswersAsHTTP(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxMessageBytes: 1000})
	s.start(t, testConfig())
	nc := s.srv.Connect()

	var first struct {
		ID        string
		Duplicate *bool
	}
	for i, duplicate := range []bool{false, true} {
		reply := request(t, nc, "mcp.ingest.s=2F1.t", ping("0"), "Idempotency-Key", "k", "Event-Type", "tick")
		if err := json.Unmarshal(reply.Data, &first); err != nil || first.Duplicate == nil || *first.Duplicate != duplicate {
			t.Fatalf("answer %d is %s, %v", i, reply.Data, err)
		}
	}
	var sum batchAnswer
	reply := request(t, nc, "mcp.ingest.s=2F1.t", []byte(` [{"message":`+string(ping("1"))+`},7]`), "Content-Type", asEnvelopes)
	if err := json.Unmarshal(reply.Data, &sum); err != nil || sum.Accepted != 1 || len(sum.Errors) != 1 || sum.Errors[0].Code != "invalid_body" {
		t.Errorf("the array gets %s, %v", reply.Data, err)
	}
	if diff := cmp.Diff([]string{"tick " + string(ping("0")), "message " + string(ping("1"))}, s.messages(t)); diff != "" {
		t.Error(diff)
	}
	if e := s.events(t)[0].Subject; e.Session != "s/1" || e.Stream != "t" {
		t.Errorf("stored under %+v", e)
	}
}

func TestNATS_BadRequest(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxMessageBytes: 1000, MaxStreamsPerSession: 1})
	in := s.start(t, testConfig())
	nc := s.srv.Connect()
	in.post(t, "full", "t", ping("0")).stored(t, false)
	in.post(t, "closed", "t", ping("0")).stored(t, false)
	must.NoError(t, s.b.Sessions.End(waittest.Context(t), "closed", "", false))
	before := len(s.entries(t))

	const subject = "mcp.ingest.s.t"
	for name, tt := range map[string]struct {
		subject string
		data    string
		headers []string
		status  string
		code    string
	}{
		"empty":               {subject, "", nil, "400", "invalid_json"},
		"broken":              {subject, "{", nil, "400", "invalid_json"},
		"lines":               {subject, "{}", []string{"Content-Type", asNDJSON}, "415", "unsupported_media_type"},
		"empty array":         {subject, "[]", []string{"Content-Type", asMessages}, "400", "invalid_body"},
		"too large":           {subject, string(ping(strings.Repeat("x", 1000))), nil, "413", "body_too_large"},
		"two keys":            {subject, string(ping("1")), []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, "400", "invalid_header"},
		"key not ASCII":       {subject, string(ping("1")), []string{"Idempotency-Key", "\u00e9"}, "400", "invalid_header"},
		"reserved type":       {subject, string(ping("1")), []string{"Event-Type", "gap"}, "400", "reserved_type"},
		"broken session":      {"mcp.ingest.s=2f.t", string(ping("1")), nil, "400", "invalid_name"},
		"session not encoded": {"mcp.ingest.s~.t", string(ping("1")), nil, "400", "invalid_name"},
		"stream too long":     {"mcp.ingest.s." + strings.Repeat("x", 129), string(ping("1")), nil, "400", "invalid_name"},
		"marker":              {"mcp.ingest.s.=end", string(ping("1")), nil, "400", "invalid_name"},
		"closed":              {"mcp.ingest.closed.t", string(ping("1")), nil, "409", "session_closed"},
		"closed, array":       {"mcp.ingest.closed.t", "[" + string(ping("1")) + "]", []string{"Content-Type", asMessages}, "409", "session_closed"},
		"too many streams":    {"mcp.ingest.full.u", string(ping("1")), nil, "409", "too_many_streams"},
		"too many, array":     {"mcp.ingest.full.u", "[" + string(ping("1")) + "]", []string{"Content-Type", asMessages}, "409", "too_many_streams"},
	} {
		t.Run(name, func(t *testing.T) {
			reply := request(t, nc, tt.subject, []byte(tt.data), tt.headers...)
			var problem struct {
				Status int
				Code   string
			}
			if err := json.Unmarshal(reply.Data, &problem); err != nil {
				t.Fatalf("%v in %s", err, reply.Data)
			}
			if got := reply.Header.Get(micro.ErrorCodeHeader); got != tt.status || fmt.Sprint(problem.Status) != tt.status {
				t.Errorf("status %s, %s", got, reply.Data)
			}
			if got := reply.Header.Get(micro.ErrorHeader); got != tt.code || problem.Code != tt.code {
				t.Errorf("code %s, %s", got, reply.Data)
			}
		})
	}
	if after := len(s.entries(t)); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}

func TestRequestOnNATS_TheReplyIsNoInbox(t *testing.T) {
	s, in := started(t)
	nc := s.srv.Connect()
	in.post(t, "victim", "t", ping("0")).stored(t, false)
	rec := must.Value(s.b.Sessions.Get(waittest.Context(t), "victim"))(t)
	before := len(s.entries(t))
	life := "mcp.0.victim." + rec.Life
	for _, reply := range []string{life + ".=clear", life + ".=end.t", life + ".t", "$KV.MCP_SESSIONS.victim", ""} {
		for _, subject := range []string{"mcp.ingest.s.t", "mcp.ingest.s", "mcp.ingest.victim"} {
			must.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: ping("1")}))
		}
	}
	// Those that follow are answered when those before were.
	request(t, nc, "mcp.ingest.victim", nil)
	request(t, nc, "mcp.ingest.victim.t", ping("2"))
	if after := len(s.entries(t)); after != before+1 {
		t.Errorf("%d entries were stored besides the one event", after-before-1)
	}
	if now, err := s.b.Sessions.Get(waittest.Context(t), "victim"); err != nil || now.Life != rec.Life || now.State != rec.State {
		t.Errorf("the session is %+v, %v", now, err)
	}
}

func TestNATS_Sessions(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	s.start(t, testConfig())
	nc := s.srv.Connect()
	refused := func(subject, status, code string) {
		t.Helper()
		reply := request(t, nc, subject, nil)
		if reply.Header.Get(micro.ErrorCodeHeader) != status || reply.Header.Get(micro.ErrorHeader) != code {
			t.Errorf("%s is answered %v %s", subject, reply.Header, reply.Data)
		}
	}
	refused("mcp.ingest.s=2F1", "404", "not_found")
	refused("mcp.ingest.s~", "400", "invalid_name")
	request(t, nc, "mcp.ingest.s=2F1.t", ping("0"))
	is := func(state session.State) {
		t.Helper()
		rec := must.Value(s.b.Sessions.Get(waittest.Context(t), "s/1"))(t)
		var got struct{ Session, Life, State string }
		reply := request(t, nc, "mcp.ingest.s=2F1", nil)
		if err := json.Unmarshal(reply.Data, &got); err != nil || got.Session != "s/1" || got.Life != rec.Life || got.State != string(state) {
			t.Errorf("it is answered %s, %v; the life is %s", reply.Data, err, rec.Life)
		}
	}
	is(session.Open)
	must.NoError(t, s.b.Sessions.End(waittest.Context(t), "s/1", "", false))
	is(session.Closed)
}

// A session whose partition does not answer holds up no other.
func TestNATS_SessionsAreAnsweredBesideEachOther(t *testing.T) {
	s, in := started(t)
	nc := s.srv.Connect()
	replies, err := nc.SubscribeSync(nats.NewInbox())
	must.NoError(t, err)
	in.mu.Lock() // requests to the log wait
	must.NoError(t, nc.PublishRequest("mcp.ingest.first", replies.Subject, nil))
	_, err = nc.Request("mcp.ingest.s~", nil, waittest.Timeout)
	in.mu.Unlock()
	if err != nil {
		t.Errorf("the second is answered %v", err)
	}
	if reply, err := replies.NextMsg(waittest.Timeout); err != nil || reply.Header.Get(micro.ErrorCodeHeader) != "404" {
		t.Errorf("the first is answered %+v, %v", reply, err)
	}
}

func TestNATS_OrderOfAConnection(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	s.start(t, testConfig())
	nc := s.srv.Connect()
	const n = 70 // all can be under way: a session may have three quarters of the slots
	inbox := nc.NewRespInbox()
	sub := must.Value(nc.SubscribeSync(inbox))(t)
	all, want := pings(n)
	for _, m := range all {
		must.NoError(t, nc.PublishRequest("mcp.ingest.s.t", inbox, []byte(m)))
	}
	for range n {
		msg, err := sub.NextMsgWithContext(waittest.Context(t))
		if err != nil || msg.Header.Get(micro.ErrorHeader) != "" {
			t.Fatalf("%v, %v", msg, err)
		}
	}
	if diff := cmp.Diff(want, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}

func TestNATS_Discovery(t *testing.T) {
	s, in := started(t)
	nc := s.srv.Connect()
	var info micro.Info
	reply := request(t, nc, "$SRV.INFO.ingest", nil)
	must.NoError(t, json.Unmarshal(reply.Data, &info))
	var found []string
	for _, e := range info.Endpoints {
		found = append(found, e.Name+" "+e.Subject+" "+e.QueueGroup)
	}
	if diff := cmp.Diff([]string{"publish mcp.ingest.*.* ingest", "session mcp.ingest.* ingest"}, found); diff != "" {
		t.Error(diff)
	}
	must.NoError(t, in.stop())
	// A request that was on its way may still be answered.
	if msg, err := nc.RequestWithContext(waittest.Context(t), "mcp.ingest.s.t", ping("0")); err == nil && msg.Header.Get(micro.ErrorHeader) != "unavailable" {
		t.Errorf("it answers %s though it has stopped", msg.Data)
	}
}
