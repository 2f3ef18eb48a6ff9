package ingest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"rejoin/services/ingest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
	"rejoin/shared/web"
)

func eventsOf(session, stream string) string {
	return "/v1/sessions/" + session + "/streams/" + stream + "/events"
}

// exhaust publishes with send until one message is refused, which it returns.
func exhaust(t *testing.T, send func() answer) answer {
	t.Helper()
	for range 1000 {
		if a := send(); a.status != http.StatusCreated {
			return a
		}
	}
	t.Fatal("nothing is refused")
	return answer{}
}

func TestRate_RetryAfter(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := forwarded(t)
	cfg.MaxPublishRate = 1
	in := s.start(t, cfg)
	session := 0
	from := func(address string) answer {
		session++
		return in.post(t, fmt.Sprint("s", session), "t", ping("1"), "X-Forwarded-For", address)
	}
	exhaust(t, func() answer { return from("2001:db8::1") }).expect(t, http.StatusTooManyRequests, "rate_limited")
	exhaust(t, func() answer { return from("203.0.113.1, 2001:db8::2") }).expect(t, http.StatusTooManyRequests, "rate_limited")
	from("2001:db8:0:1::1").stored(t, false)
	if in.metric(t, "rejoin_ingest_published_total", "limited") != 2 {
		t.Error("refusals are not counted")
	}
	waittest.Until(t, "there is a token again", func() bool { return from("2001:db8::1").status == http.StatusCreated })

	proxied := testConfig()
	proxied.MaxPublishRate = 1
	in = s.start(t, proxied)
	next := 0
	exhaust(t, func() answer { next++; return from(fmt.Sprintf("203.0.113.%d", next)) }).expect(t, http.StatusTooManyRequests, "rate_limited")
}

func TestRate_PerSubject(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := guardedConfig(t)
	cfg.MaxPublishRate, cfg.MaxSessionPublishRate = 1, 2
	in := s.start(t, cfg)
	alice, again, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "alice", "s*"), authtest.Of(t, "bob", "*")
	post := func(token, session string) answer {
		return in.as(t, token, http.MethodPost, eventsOf(session, "t"), string(ping("1")))
	}
	for token, session := range map[string]string{alice: "s", bob: "b"} {
		in.as(t, token, http.MethodPost, "/v1/sessions", `{"session":"`+session+`"}`).got(t, http.StatusCreated)
	}
	// Requests of a client that may not publish to a session do not use up the session's rate.
	for range 30 {
		if a := post(bob, "s"); a.status != http.StatusNotFound && a.status != http.StatusTooManyRequests {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	sum := 0
	exhaust(t, func() answer { sum++; return post(alice, "s") }).expect(t, http.StatusTooManyRequests, "rate_limited")
	if sum < 10 {
		t.Errorf("alice was let in %d times", sum)
	}
	exhaust(t, func() answer { return post(again, "s") }).expect(t, http.StatusTooManyRequests, "rate_limited")
}

func TestRate_HTTPAndNATS(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.MaxSessionPublishRate = 1
	in := s.start(t, cfg)
	nc := s.srv.Connect()
	refused := func(subject, data string, headers ...string) *nats.Msg {
		for range 1000 {
			if reply := request(t, nc, subject, []byte(data), headers...); reply.Header.Get(micro.ErrorHeader) != "" {
				return reply
			}
		}
		t.Fatal("nothing is refused")
		return nil
	}
	exhaust(t, func() answer { return in.post(t, "s", "t", ping("1")) }).expect(t, http.StatusTooManyRequests, "rate_limited")
	for data, headers := range map[string][]string{string(ping("2")): nil, "[" + string(ping("2")) + "]": {"Content-Type", asMessages}} {
		reply := refused("mcp.ingest.s.u", data, headers...)
		if reply.Header.Get(micro.ErrorCodeHeader) != "429" || reply.Header.Get(micro.ErrorHeader) != "rate_limited" || !strings.Contains(string(reply.Data), `"status":429`) {
			t.Errorf("%v %s", reply.Header, reply.Data)
		}
	}
	in.post(t, "other", "t", ping("1")).stored(t, false)

	// An array on NATS does not wait: others would wait for it. It is stored so far.
	reply := request(t, nc, "mcp.ingest.n.t", []byte("["+strings.Repeat(string(ping("3"))+",", 49)+string(ping("3"))+"]"), "Content-Type", asMessages)
	var sum batchAnswer
	if err := json.Unmarshal(reply.Data, &sum); err != nil || sum.Accepted < 10 || sum.Accepted > 20 || sum.Stopped == nil || sum.Stopped.Code != "rate_limited" || sum.Stopped.Index != sum.Accepted {
		t.Errorf("%s, %v", reply.Data, err)
	}
}

// A batch over the rate is slowed down: all of it is stored, and then no token is left.
func TestRate_BatchIsSlowed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	for session, change := range map[string]func(*ingest.Config){
		"publisher": func(c *ingest.Config) { c.MaxPublishRate = 2 },
		"session":   func(c *ingest.Config) { c.MaxSessionPublishRate = 2 },
	} {
		cfg := testConfig()
		change(&cfg)
		in := s.start(t, cfg)
		text := strings.Repeat(string(ping("1"))+"\n", 26)
		if sum := in.postBatch(t, asNDJSON, eventsOf(session, "t"), text); sum.Accepted != 26 || sum.Stopped != nil {
			t.Errorf("%s: %+v", session, sum)
		}
		array := "[" + string(ping("1")) + "," + string(ping("1")) + "]"
		if sum := in.postBatch(t, asMessages, eventsOf(session, "t"), array); sum.Accepted != 2 || sum.Stopped != nil {
			t.Errorf("%s: an array: %+v", session, sum)
		}
		if in.metric(t, "rejoin_ingest_published_total", "limited") != 0 {
			t.Errorf("%s: what waited is counted as refused", session)
		}
		exhaust(t, func() answer { return in.post(t, session, "t", ping("1")) }).expect(t, http.StatusTooManyRequests, "rate_limited")
	}
}

// A batch that waits for the rate does not keep the service from stopping.
func TestStop_WaitingBatch(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.MaxSessionPublishRate = 1
	in := s.start(t, cfg)
	answers := make(chan answer, 1)
	go func() {
		answers <- in.send(t, http.MethodPost, eventsOf("s", "t"), []byte(strings.Repeat(string(ping("1"))+"\n", 1000)), "Content-Type", asNDJSON)
	}()
	waittest.Until(t, "it waits", func() bool { return in.metric(t, "rejoin_ingest_published_total", "stored") >= 10 })
	must.NoError(t, in.stop())
	var sum batchAnswer
	a := <-answers
	if err := json.Unmarshal(a.body, &sum); err != nil || sum.Stopped == nil || sum.Stopped.Code != "unavailable" || sum.Stopped.Index != sum.Accepted {
		t.Errorf("%d %s, %v", a.status, a.body, err)
	}
}

func TestOpenStreams_PerSession(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxStreamsPerSession: 3})
	cfg := testConfig()
	cfg.Streams.MaxStreamsOverride = 4
	in := s.start(t, cfg)
	for i := range 3 {
		in.post(t, "s", fmt.Sprint(i), ping("1")).stored(t, false)
	}
	before := len(s.events(t))
	full := func(a answer) { t.Helper(); a.expect(t, http.StatusConflict, "too_many_streams") }
	full(in.post(t, "s", "3", ping("1")))
	full(in.send(t, http.MethodPost, eventsOf("s", "3"), []byte("["+string(ping("1"))+"]"), "Content-Type", asMessages))
	full(in.send(t, http.MethodPost, eventsOf("s", "3"), ping("1"), "Content-Type", asNDJSON))
	full(in.send(t, http.MethodPost, eventsOf("s", "3")+"?results=each", ping("1"), "Content-Type", asNDJSON))
	if n := len(s.events(t)); n != before {
		t.Errorf("%d events were stored", n-before)
	}
	if n := in.metric(t, "rejoin_ingest_published_total", "limited"); n != 3 {
		t.Errorf("%v refusals are counted", n)
	}
	in.post(t, "s", "0", ping("2")).stored(t, false)
	in.post(t, "t", "3", ping("1")).stored(t, false)

	// A stream that was ended elsewhere counts until another one would be refused for it.
	other := s.start(t, cfg)
	for i, closer := range []*instance{in, other} {
		closer.close(t, fmt.Sprint("s/streams/", i)).got(t, http.StatusNoContent)
		in.post(t, "s", fmt.Sprint(3+i), ping("1")).stored(t, false)
		full(in.post(t, "s", "5", ping("1")))
	}
	other.close(t, "s/streams/2").got(t, http.StatusNoContent)
	if sum := in.postBatchEach(t, eventsOf("s", "5"), string(ping("1"))+"\n"); sum.Accepted != 1 {
		t.Errorf("%+v", sum)
	}
	full(in.post(t, "s", "6", ping("1")))

	for name, most := range map[string]int{"fewer": 2, "more": 4, "most": 4} {
		asked := map[string]string{"fewer": "2", "more": "4", "most": "-1"}[name]
		in.create(t, `{"session":"`+name+`","metadata":{"retention":{"maxStreams":`+asked+`}}}`)
		for i := range most {
			in.post(t, name, fmt.Sprint(i), ping("1")).stored(t, false)
		}
		full(in.post(t, name, "x", ping("1")))
	}
}

// A refused message opens no stream, and neither does a request without messages.
func TestOpenStreams_RefusedMessagesDoNotCount(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxStreamsPerSession: 2})
	in := s.start(t, testConfig())
	in.create(t, `{"session":"s","metadata":{"messages":"jsonrpc"}}`)
	for _, stream := range []string{"a", "b", "c"} {
		in.post(t, "s", stream, []byte(`{"no":"JSON-RPC"}`)).got(t, http.StatusBadRequest)
		in.send(t, http.MethodPost, eventsOf("s", stream)+"?results=each", nil, "Content-Type", asNDJSON).got(t, http.StatusOK)
	}
	in.post(t, "s", "d", ping("1")).stored(t, false)
}

// A session that stays full does not have the log asked at each refusal.
func TestOpenStreams_LooksAreLimited(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxStreamsPerSession: 1})
	in := s.start(t, testConfig())
	in.post(t, "s", "a", ping("1")).stored(t, false)
	for range 1000 {
		a := in.post(t, "s", "b", ping("1"))
		if a.status == http.StatusTooManyRequests {
			a.expect(t, http.StatusTooManyRequests, "rate_limited")
			return
		}
		a.expect(t, http.StatusConflict, "too_many_streams")
	}
	t.Error("the log is asked each time")
}

// A stream of which nothing could be stored does not count.
func TestOpenStreams_FailedMessagesDoNotCount(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxStreamsPerSession: 2})
	in := s.start(t, testConfig())
	in.post(t, "s", "a", ping("1")).stored(t, false)
	s.change(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = int64(s.last(t)), jetstream.DiscardNew })
	for _, stream := range []string{"b", "c", "a"} {
		in.post(t, "s", stream, ping("2")).expect(t, http.StatusServiceUnavailable, "storage_full")
	}
	s.change(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = -1, jetstream.DiscardOld })
	in.post(t, "s", "d", ping("3")).stored(t, false)
	in.post(t, "s", "e", ping("3")).expect(t, http.StatusConflict, "too_many_streams")
}

// forwarded returns a configuration that takes the client's address from X-Forwarded-For.
func forwarded(t *testing.T) ingest.Config {
	t.Helper()
	clients := must.Value(web.NewClients(web.ClientsConfig{TrustedProxies: []string{"127.0.0.1"}}))(t)
	cfg := testConfig()
	cfg.Clients = clients
	return cfg
}

func tooMany(t *testing.T, a answer) {
	t.Helper()
	a.expect(t, http.StatusTooManyRequests, "too_many_sessions")
	if after := a.header.Get("Retry-After"); after != "30" {
		t.Errorf("Retry-After: %q", after)
	}
}

func TestMaxSessions_ClientsHaveShares(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := forwarded(t)
	cfg.Sessions.MaxSessions, cfg.MaxSessionRate = 8, -1
	in := s.start(t, cfg)
	const greedy, modest = "2001:db8::1", "192.0.2.1"
	create := func(address, name string) answer {
		return in.send(t, http.MethodPost, "/v1/sessions", []byte(`{"session":"`+name+`"}`), "Content-Type", asJSON, "X-Forwarded-For", address)
	}
	open := func(a answer) { t.Helper(); a.got(t, http.StatusCreated) }
	for i := range 5 {
		open(create(greedy, fmt.Sprint("g", i)))
	}
	open(in.post(t, "g5", "t", ping("1"), "X-Forwarded-For", "2001:db8::2"))

	tooMany(t, create(greedy, "g6"))
	tooMany(t, in.post(t, "g6", "t", ping("1"), "X-Forwarded-For", greedy))
	tooMany(t, in.send(t, http.MethodPost, eventsOf("g6", "t"), []byte("["+string(ping("1"))+"]"), "Content-Type", asMessages, "X-Forwarded-For", greedy))
	tooMany(t, in.send(t, http.MethodPost, eventsOf("g6", "t"), ping("1"), "Content-Type", asNDJSON, "X-Forwarded-For", greedy))
	in.post(t, "g0", "t", ping("1"), "X-Forwarded-For", greedy).stored(t, false) // existing streams take more

	open(create(modest, "m0"))
	in.close(t, "g0").got(t, http.StatusNoContent)
	tooMany(t, create(greedy, "g6")) // a closed one counts
	if n := in.metric(t, "rejoin_ingest_sessions_ratio"); n != 7./8 {
		t.Errorf("%v are taken", n)
	}
	open(create(modest, "m1"))
	tooMany(t, create(modest, "m2"))
	tooMany(t, create("192.0.2.2", "m2"))
	if n := in.metric(t, "rejoin_ingest_sessions_refused_total", "sessions"); n != 2 {
		t.Errorf("%v times all were taken", n)
	}
	if n := in.metric(t, "rejoin_ingest_sessions_refused_total", "share"); n != 5 {
		t.Errorf("%v times the share was taken", n)
	}
	reply := request(t, s.srv.Connect(), "mcp.ingest.n.t", ping("1"))
	if reply.Header.Get(micro.ErrorCodeHeader) != "429" || reply.Header.Get(micro.ErrorHeader) != "too_many_sessions" {
		t.Errorf("%v %s", reply.Header, reply.Data)
	}
}

func TestMaxSessions_OwnersHaveShares(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := guardedConfig(t)
	cfg.Sessions.MaxSessions, cfg.Sessions.MaxMetadataBytes, cfg.MaxSessionRate = 8, 800, -1
	alice, bob := authtest.Of(t, "alice", "*"), authtest.Of(t, "bob", "*")
	metadata := `{"metadata":{"x":"` + strings.Repeat("x", 100-8) + `"}}`
	opened := map[string]int{}
	in := s.start(t, cfg)
	fill := func(token, body string) {
		t.Helper()
		for range 9 {
			a := in.as(t, token, http.MethodPost, "/v1/sessions", body)
			if a.status != http.StatusCreated {
				tooMany(t, a)
				return
			}
			opened[token]++
		}
		t.Error("nothing is refused")
	}
	fill(alice, metadata)
	in = s.start(t, cfg) // the records name their clients
	fill(alice, metadata)
	fill(bob, metadata)
	if opened[alice] != 6 || opened[bob] != 2 {
		t.Errorf("alice has %d, bob %d", opened[alice], opened[bob])
	}
}

func TestMaxMetadataBytes(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.Sessions.MaxMetadataBytes, cfg.MaxSessionRate = 1000, -1
	in := s.start(t, cfg)
	// As stored, a < takes six bytes.
	tooMany(t, in.create(t, `{"metadata":{"x":"`+strings.Repeat("<", 200)+`"}}`))
	in.create(t, `{"metadata": {"x": "`+strings.Repeat("<", 100)+`"}}`).got(t, http.StatusCreated)
	if n := in.metric(t, "rejoin_ingest_sessions_ratio"); n != 0.608 {
		t.Errorf("%v of it are taken", n)
	}
	in.post(t, "s", "t", ping("1")).stored(t, false)
	tooMany(t, in.create(t, `{"metadata":{"x":"`+strings.Repeat("x", 500)+`"}}`))
	if n := in.metric(t, "rejoin_ingest_sessions_refused_total", "metadata"); n != 2 {
		t.Errorf("%v refusals are counted", n)
	}
}

// A client that was refused for a full limit has used up its burst.
func TestMaxSessionRate_LimitIsReached(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.Sessions.MaxSessions, cfg.MaxSessionRate = 1, 1
	in := s.start(t, cfg)
	in.create(t, "{}").got(t, http.StatusCreated)
	tooMany(t, in.create(t, "{}"))
	for range 5 { // of the nine that the burst would have left
		if in.create(t, "{}").Code == "rate_limited" {
			return
		}
	}
	t.Error("the burst is left")
}

func TestMaxSessionRate(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := forwarded(t)
	cfg.MaxSessionRate = 1
	in := s.start(t, cfg)
	in.post(t, "there", "t", ping("1")).stored(t, false)
	next := 0
	for _, open := range []func(address string) answer{
		func(address string) answer {
			return in.send(t, http.MethodPost, "/v1/sessions", nil, "X-Forwarded-For", address)
		},
		func(address string) answer {
			next++
			return in.post(t, fmt.Sprint("s", next), "t", ping("1"), "X-Forwarded-For", address)
		},
		func(address string) answer {
			next++
			return in.send(t, http.MethodDelete, fmt.Sprint("/v1/sessions/there/streams/s", next), nil, "X-Forwarded-For", address)
		},
	} {
		a := exhaust(t, func() answer { return open("192.0.2.1") })
		a.expect(t, http.StatusTooManyRequests, "rate_limited")
		if after := a.header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After: %q", after)
		}
		if a := open("192.0.2.2"); a.status != http.StatusCreated && a.status != http.StatusNoContent {
			t.Errorf("another client is answered %d %s", a.status, a.body)
		}
		for range 30 { // messages are not counted
			in.post(t, "there", "t", ping("1"), "X-Forwarded-For", "192.0.2.1").stored(t, false)
		}
	}
	if n := in.metric(t, "rejoin_ingest_sessions_refused_total", "rate"); n != 2 {
		t.Errorf("%v refusals are counted", n)
	}
}
