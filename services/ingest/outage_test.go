package ingest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func (s *system) change(t *testing.T, change func(*jetstream.StreamConfig)) {
	t.Helper()
	js := natstest.JetStream(t, s.b.Conn)
	stream := must.Value(js.Stream(waittest.Context(t), "MCP_0"))(t)
	cfg := stream.CachedInfo().Config
	for k := range cfg.Metadata {
		if k[0] == '_' {
			delete(cfg.Metadata, k)
		}
	}
	change(&cfg)
	must.Value(js.UpdateStream(waittest.Context(t), cfg))(t)
}

func (in *instance) ready() bool { return in.env.Health.Readiness().Ready }

func TestNATS_Reconnect(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	eventlogtest.Begin(t, s.b.Log)
	in := s.start(t, testConfig())
	if !in.ready() {
		t.Error("not ready at the start")
	}
	for round := range 3 {
		in.takes(t, fmt.Sprint(round), fmt.Sprint("first", round))
		s.srv.Stop()
		waittest.Until(t, "not ready", func() bool { return !in.ready() })
		restore := in.expire()
		in.post(t, "s", "t", ping("lost")).expect(t, http.StatusServiceUnavailable, "unavailable")
		in.post(t, "new", "t", ping("lost")).expect(t, http.StatusServiceUnavailable, "unavailable")
		in.create(t, `{"session":"new"}`).expect(t, http.StatusServiceUnavailable, "unavailable")
		in.close(t, "s").expect(t, http.StatusServiceUnavailable, "unavailable")
		in.post(t, "s", "t", []byte("{")).expect(t, http.StatusBadRequest, "invalid_json")
		restore()
		s.srv.Start()
		waittest.Until(t, "ready", in.ready)
		in.takes(t, "back", fmt.Sprint(round))
	}
	if n := len(s.events(t)); n != 6 {
		t.Errorf("%d events are stored", n)
	}
}

func TestPublish_UnknownOutcomeIsRetried(t *testing.T) {
	t.Parallel()
	s, in := started(t)
	in.post(t, "s", "t", ping("0")).stored(t, false) // the birth of its stream
	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = true })
	s.unacknowledged(t, in, func() answer { return in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k") }).expect(t, http.StatusServiceUnavailable, "publish_unknown")
	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = false })
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k").stored(t, true)
	if n := len(s.events(t)); n != 2 {
		t.Errorf("%d events are stored", n)
	}
	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = true })
	s.unacknowledged(t, in, func() answer { return in.close(t, "s") }).expect(t, http.StatusServiceUnavailable, "unavailable")
	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = false })
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k").stored(t, true)
	in.close(t, "s").got(t, http.StatusNoContent)
	in.post(t, "s", "t", ping("2")).expect(t, http.StatusConflict, "session_closed")
}

func TestSession_UnknownOutcome(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	in, alice := s.start(t, guardedConfig(t)), actingFor(t, "alice")
	create := func(session string) answer {
		return in.as(t, alice, http.MethodPost, "/v1/sessions", `{"session":"`+session+`"}`)
	}
	create("first").got(t, http.StatusCreated)
	for _, tt := range []struct {
		ask   func() answer
		says  string
		again int
	}{
		{func() answer { return create("s") }, "may have been created", http.StatusConflict},
		{func() answer {
			return in.as(t, alice, http.MethodPut, "/v1/sessions/s/members", `{"members":["bob"]}`)
		}, "may have been changed", http.StatusOK},
	} {
		s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = true })
		a := s.unacknowledged(t, in, tt.ask)
		a.expect(t, http.StatusServiceUnavailable, "unavailable")
		if !strings.Contains(string(a.body), tt.says) {
			t.Errorf("the answer says %s", a.body)
		}
		s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = false })
		tt.ask().got(t, tt.again)
	}
}

func TestMetrics_EachMoves(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.MaxInFlight = 1
	in := s.start(t, cfg)
	const published, closes = "rejoin_ingest_published_total", "rejoin_ingest_closes_total"
	expect := func(name, label string, want float64) {
		t.Helper()
		if got := in.metric(t, name, label); got != want {
			t.Errorf("%s %s is %v, want %v", name, label, got, want)
		}
	}
	for _, result := range []string{"stored", "duplicate", "refused", "limited", "unavailable", "unknown"} {
		expect(published, result, 0)
	}
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k").stored(t, false)
	expect(published, "stored", 1)
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "k").stored(t, true)
	expect(published, "duplicate", 1)
	in.post(t, "s", "t", []byte("nul")).expect(t, 400, "invalid_json")
	in.post(t, "s", "t", ping("1"), "Event-Type", "gap").expect(t, 400, "reserved_type")
	in.post(t, "s", "t", ping("1"), "Idempotency-Key", "").expect(t, 400, "invalid_header")
	expect(published, "refused", 3)
	expect("rejoin_ingest_publish_seconds", "", 2)

	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = true })
	unknown, before := make(chan answer, 1), s.last(t)
	go func() { unknown <- in.post(t, "s", "t", ping("2")) }()
	s.awaitEntries(t, before+1)
	expect("rejoin_ingest_inflight", "", 1)
	in.post(t, "s", "t", ping("3")).expect(t, http.StatusServiceUnavailable, "unavailable")
	expect(published, "unavailable", 1)
	restore := in.expire()
	a := <-unknown
	restore()
	a.expect(t, http.StatusServiceUnavailable, "publish_unknown")
	expect(published, "unknown", 1)
	expect("rejoin_ingest_inflight", "", 0)

	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck, c.MaxMsgs, c.Discard = false, 4, jetstream.DiscardNew })
	in.post(t, "s", "t", ping("4")).expect(t, http.StatusServiceUnavailable, "storage_full")
	expect(published, "unavailable", 2)
	in.close(t, "s").expect(t, http.StatusServiceUnavailable, "unavailable")
	expect(closes, "failed", 1)
	s.change(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = -1, jetstream.DiscardOld })
	in.close(t, "s").got(t, http.StatusNoContent)
	expect(closes, "closed", 1)
	in.close(t, "nobody").expect(t, http.StatusNotFound, "not_found")
	expect(closes, "not_found", 1)
	if in.metric(t, "rejoin_ingest_http_requests_total", "201") < 2 {
		t.Error("requests are not counted")
	}
}

// The log's trouble with the last messages is known after they were all read.
func TestBatch_LogFullAtTheEnd(t *testing.T) {
	t.Parallel()
	for kind, body := range map[string]string{asNDJSON: "%s\n%s\n", asMessages: "[%s,%s]"} {
		s := newSystem(t, eventlog.Settings{Partitions: 1}) // once it was full, messages wait for each other
		in := s.start(t, testConfig())
		in.post(t, "s", "t", ping("0")).stored(t, false) // the birth of its stream
		s.change(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 2, jetstream.DiscardNew })
		got := in.postBatch(t, kind, batchPath, fmt.Sprintf(body, ping("1"), ping("2")))
		if got.Accepted != 0 || got.Stopped == nil || got.Stopped.Index != 2 || got.Stopped.Code != "storage_full" {
			t.Errorf("%s: %+v, stopped %+v", kind, got, got.Stopped)
		}
	}
}
