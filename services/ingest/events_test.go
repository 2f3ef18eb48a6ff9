package ingest_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

func TestPublish_ByteForByte(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 4})
	in := s.start(t, testConfig())
	js := natstest.JetStream(t, s.b.Conn)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, tt := range map[string]struct {
		session, stream string // percent-encoded
		body            string
		headers         []string
		typ, trace      string
	}{
		"request":           {"s", "t", `{"jsonrpc":"2.0","id":1,"method":"m"}`, nil, "message", ""},
		"notification":      {"s", "t", `{"jsonrpc":"2.0","method":"m","params":[]}`, nil, "message", ""},
		"result":            {"s", "t", `{"jsonrpc":"2.0","id":"1","result":null}`, nil, "message", ""},
		"error":             {"s", "t", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":""}}`, nil, "message", ""},
		"white space":       {"s", "t", " { \"method\" :\t\"\u00e9 \\u00e9\", \"jsonrpc\":\"2.0\" , \"x\":1.0e2}  ", nil, "message", ""},
		"an object":         {"s", "t", `{"id":"o-1","message":"hi","key":1,"id":"o-2"}`, nil, "message", ""},
		"an array":          {"s", "t", `[{"message":1},[]]`, nil, "message", ""},
		"a string":          {"s", "t", `"token"`, nil, "message", ""},
		"a number":          {"s", "t", `-1.50e+2`, nil, "message", ""},
		"null":              {"s", "t", `null`, nil, "message", ""},
		"encoded names":     {"a%2Fb", "%2A", string(ping("1")), nil, "message", ""},
		"names with dots":   {"a.b", "...", string(ping("1")), nil, "message", ""},
		"longest names":     {strings.Repeat("x", 128), strings.Repeat("~", 128), string(ping("1")), nil, "message", ""},
		"type":              {"s", "t", string(ping("1")), []string{"Event-Type", "tick"}, "tick", ""},
		"type in UTF-8":     {"s", "t", string(ping("1")), []string{"Event-Type", "t\u00e9"}, "t\u00e9", ""},
		"the default type":  {"s", "t", string(ping("1")), []string{"Event-Type", "message"}, "message", ""},
		"trace":             {"s", "t", string(ping("1")), []string{"Traceparent", trace}, "message", trace},
		"broken trace":      {"s", "t", string(ping("1")), []string{"Traceparent", trace + "-"}, "message", ""},
		"two traces":        {"s", "t", string(ping("1")), []string{"Traceparent", trace, "Traceparent", trace}, "message", ""},
		"forged headers":    {"s", "t", string(ping("1")), []string{"Rejoin-Final", "1", "Nats-Msg-Size", "7"}, "message", ""},
		"key":               {"s", "t", string(ping("1")), []string{"Idempotency-Key", "a key ~!"}, "message", ""},
		"longest key":       {"s", "t", string(ping("1")), []string{"Idempotency-Key", strings.Repeat("k", 256)}, "message", ""},
		"encoding identity": {"s", "t", string(ping("1")), []string{"Content-Encoding", "identity"}, "message", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := in.post(t, tt.session, tt.stream, []byte(tt.body), tt.headers...)
			a.stored(t, false)
			id := must.Value(event.ParseID(a.ID))(t)
			unescape := strings.NewReplacer("%2F", "/", "%2A", "*")
			session, stream := unescape.Replace(tt.session), unescape.Replace(tt.stream)
			p := s.b.Log.Partition(session)
			e := must.Value(s.b.Log.At(waittest.Context(t), p, id.Sequence))(t)
			if !bytes.Equal(e.Data, []byte(tt.body)) || e.Type != tt.typ || e.Final || !e.Valid || e.Subject != (event.Subject{Partition: p, Session: session, Life: e.Subject.Life, Stream: stream}) {
				t.Errorf("stored as %+v", e)
			}
			rec := must.Value(s.b.Sessions.Get(waittest.Context(t), session))(t)
			state := must.Value(s.b.Log.Look(waittest.Context(t), p))(t)
			place := event.TagParts{Origin: state.Origin, Session: session, Life: rec.Life, Stream: stream}
			if verdict, _ := event.Resolve(id, place, state.Generations); verdict != event.Good || rec.Life == "" || rec.Life != e.Subject.Life {
				t.Errorf("the id %s has verdict %d", a.ID, verdict)
			}
			place.Life, place.Generation = "another", state.Generation().ID
			if place.Tag() == id.Tag {
				t.Error("the id does not depend on the life")
			}
			partition := must.Value(js.Stream(waittest.Context(t), fmt.Sprintf("MCP_%d", p)))(t)
			raw, err := partition.GetMsg(waittest.Context(t), id.Sequence)
			if err != nil || raw.Header.Get("traceparent") != tt.trace || raw.Header.Get("Nats-Msg-Size") != "" {
				t.Errorf("headers %v, %v", raw.Header, err)
			}
		})
	}
}

func TestKey_StoredOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	eventlogtest.Begin(t, s.b.Log)
	in, other := s.start(t, testConfig()), s.start(t, testConfig())
	first := in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k")
	first.stored(t, false)
	for _, i := range []*instance{in, other, in} {
		again := i.post(t, "s", "t", ping("1"), "Idempotency-Key", "k")
		again.stored(t, true)
		if again.ID != first.ID {
			t.Errorf("the duplicate is %s, the first %s", again.ID, first.ID)
		}
	}
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k2").stored(t, false)
	in.post(t, "s", "t2", ping("1"), "Idempotency-Key", "k").stored(t, false)
	in.post(t, "s2", "t", ping("1"), "Idempotency-Key", "k").stored(t, false)
	in.post(t, "s", "t", ping("1")).stored(t, false)

	before, _ := s.b.Log.State(0)
	s.srv.Stop()
	s.srv.Start()
	waittest.Until(t, "a new generation", func() bool {
		now, _ := in.b.Log.State(0)
		return now.Generation() != before.Generation()
	})
	again := in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k")
	again.stored(t, true)
	if again.ID != first.ID {
		t.Errorf("after a restart the duplicate is %s, the first %s", again.ID, first.ID)
	}
	if n := len(s.events(t)); n != 5 {
		t.Errorf("%d events are stored", n)
	}
}

func TestRoutes_OnAnotherApplication(t *testing.T) {
	_, in := started(t)
	app := web.NewApp(web.Config{Service: "other", MaxBodyBytes: func() int { return 16 << 20 }})
	web.Mount(app, in.Routes()...)
	for size, want := range map[int]int{100: http.StatusCreated, 2 << 20: http.StatusCreated, 9 << 20: http.StatusRequestEntityTooLarge} {
		body := `{"jsonrpc":"2.0","method":"` + strings.Repeat("m", size) + `"}`
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/sessions/s/streams/t/events", strings.NewReader(body))
		req.Header.Set("Content-Type", asJSON)
		resp, err := app.Test(req, -1)
		must.NoError(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes: %d, want %d", size, resp.StatusCode, want)
		}
	}
}

// A message over several lines is stored in one, with every value as it was written.
func TestPublish_SeveralLines(t *testing.T) {
	s, in := started(t)
	in.post(t, "s", "t", []byte("\r\n{\n  \"a b\": [ 1.0e2,\r\n \"c\\n d\" ]\n}\n")).stored(t, false)
	in.postBatch(t, asMessages, eventsOf("s", "t"), "[{\n\"x\": 1 }, 2\n]")
	if diff := cmp.Diff([]string{`message {"a b":[1.0e2,"c\n d"]}`, `message {"x":1}`, "message 2"}, s.messages(t)); diff != "" {
		t.Error(diff)
	}
}
