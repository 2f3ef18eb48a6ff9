package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"rejoin/shared/event"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// parentOf is the trace context of a publisher; each n has a trace of its own.
func parentOf(n int, flags string) (traceparent, traceID, spanID string) {
	traceID, spanID = fmt.Sprintf("%032x", 0xabc000+n), fmt.Sprintf("%016x", 0xdef000+n)
	return "00-" + traceID + "-" + spanID + "-" + flags, traceID, spanID
}

// upstream is an MCP server with one session that answers at once, reports on the client's GET that its tools have
// changed, and notes the trace context of each method.
type upstream struct {
	*httptest.Server

	mu      sync.Mutex
	parents map[string]string
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{parents: map[string]string{}}
	u.Server = serve(t, func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m) // else it has no method
		u.mu.Lock()
		u.parents[m.Method] = r.Header.Get("traceparent")
		u.mu.Unlock()
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
		default:
			w.Header().Set("Content-Type", jsonType)
			w.Header().Set("Mcp-Session-Id", "theirs")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"u","version":"1"},"content":[]}}`, m.ID)
		}
	})
	return u
}

func (u *upstream) parent(method string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.parents[method]
}

// A trace leads from the publisher to every client, through all services.
func TestTrace_FromPublisherToClient(t *testing.T) {
	c := newCollector(t)
	up := newUpstream(t)
	s := startServices(t, "--ack-timeout=9s")
	bridge := startService(t, "bridge", s.nats.flag(), "--upstream="+up.URL, "--bridge-name=e2e")
	edge := procAt(t, s.edge)
	nc := must.Value(nats.Connect("nats://" + s.nats.addr))(t)
	defer nc.Close()
	path := streamPath("s", "t")
	listener := edge.subscribe(path, "")
	listener.connected()

	t.Run("HTTP", func(t *testing.T) {
		parent, id, publisher := parentOf(1, "01")
		a := do(t, http.MethodPost, s.ingest+path, numbered(1), "Content-Type", jsonType, "traceparent", parent, "tracestate", "a=b")
		a.got(t, http.StatusCreated)
		listener.numbers(1, 1)
		request := c.one(t, id, "rejoin-ingest", "POST /v1/sessions/:session/streams/:stream/events", publisher)
		publish := c.one(t, id, "rejoin-ingest", "publish ", request.id)
		deliver := c.one(t, id, "rejoin-sse-edge", "deliver ", publish.id)
		if request.kind != trace.Span_SPAN_KIND_SERVER || publish.kind != trace.Span_SPAN_KIND_PRODUCER || deliver.kind != trace.Span_SPAN_KIND_CONSUMER {
			t.Errorf("the kinds are %v, %v and %v", request.kind, publish.kind, deliver.kind)
		}
		subject := place(t, nc, "s", "t").String()
		for _, s := range []span{publish, deliver} {
			for name, want := range map[string]string{
				"messaging.system": "nats", "messaging.destination.name": subject, "rejoin.session": "s", "rejoin.stream": "t",
			} {
				if s.attributes[name] != want {
					t.Errorf("%s of %s is %q, want %q", name, s.name, s.attributes[name], want)
				}
			}
		}
	})
	t.Run("NATS", func(t *testing.T) {
		parent, id, publisher := parentOf(2, "01")
		msg := nats.NewMsg("mcp.ingest.s.t")
		msg.Header.Set("traceparent", parent)
		msg.Data = []byte(numbered(2))
		must.Value(nc.RequestMsg(msg, waittest.Timeout))(t)
		listener.numbers(2, 2)
		request := c.one(t, id, "rejoin-ingest", "process mcp.ingest.", publisher)
		publish := c.one(t, id, "rejoin-ingest", "publish ", request.id)
		c.one(t, id, "rejoin-sse-edge", "deliver ", publish.id)
	})
	t.Run("JetStream", func(t *testing.T) {
		parent, id, publisher := parentOf(3, "01")
		msg := nats.NewMsg(place(t, nc, "s", "t").String())
		msg.Header.Set("traceparent", parent)
		msg.Data = []byte(numbered(3))
		must.Value(nc.RequestMsg(msg, waittest.Timeout))(t)
		listener.numbers(3, 3)
		c.one(t, id, "rejoin-sse-edge", "deliver ", publisher)
	})
	t.Run("a batch", func(t *testing.T) {
		parent, id, publisher := parentOf(4, "01")
		do(t, http.MethodPost, s.ingest+path, "["+numbered(4)+","+numbered(5)+"]", "Content-Type", "application/vnd.rejoin.messages+json", "traceparent", parent)
		listener.numbers(4, 5)
		request := c.one(t, id, "rejoin-ingest", "POST", publisher)
		waittest.Until(t, "each message is delivered", func() bool {
			delivered := map[string]bool{}
			for _, s := range c.of(id) {
				if strings.HasPrefix(s.name, "deliver ") {
					delivered[s.parent] = true
				}
			}
			for _, s := range c.of(id) {
				if strings.HasPrefix(s.name, "publish ") && s.parent == request.id {
					delete(delivered, s.id)
				}
			}
			return len(c.of(id)) == 5 && len(delivered) == 0
		})
	})
	t.Run("what is not sampled", func(t *testing.T) {
		parent, id, _ := parentOf(5, "00")
		do(t, http.MethodPost, s.ingest+path, numbered(6), "Content-Type", jsonType, "traceparent", parent)
		listener.numbers(6, 6)
		marker, after, publisher := parentOf(6, "01")
		do(t, http.MethodPost, s.ingest+path, numbered(7), "Content-Type", jsonType, "traceparent", marker)
		last := listener.numbers(7, 7)
		c.one(t, after, "rejoin-ingest", "POST", publisher)
		if spans := c.of(id); len(spans) > 0 {
			t.Errorf("there is %v", spans)
		}
		// A client that resumes has a span as well, and gets the event in its own trace.
		again, resumed, client := parentOf(7, "01")
		before := must.Value(event.ParseID(last))(t)
		before.Sequence--
		a := do(t, http.MethodGet, s.edge+path, "", "Accept", "application/json", "Last-Event-ID", before.String(), "traceparent", again)
		a.got(t, http.StatusOK)
		page := c.one(t, resumed, "rejoin-sse-edge", "GET /v1/sessions/:session/streams/:stream/events", client)
		waittest.Until(t, "the page is linked", func() bool {
			for _, s := range c.of(after) {
				if strings.HasPrefix(s.name, "deliver ") && len(s.linked) == 1 && s.linked[0] == page.id {
					return true
				}
			}
			return false
		})
		stream, resumed, client := parentOf(8, "01")
		edge.subscribe(path, before.String(), "traceparent", stream)
		request := c.one(t, resumed, "rejoin-sse-edge", "GET", client)
		resume := c.one(t, resumed, "rejoin-sse-edge", "resume ", request.id)
		if resume.attributes["rejoin.source"] != "window" || resume.attributes["rejoin.session"] != "s" {
			t.Errorf("the resume has %v", resume.attributes)
		}
	})
	t.Run("MCP", func(t *testing.T) {
		session := initialize(t, s.edge)
		parent, id, client := parentOf(9, "01")
		a := do(t, http.MethodPost, s.edge+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, "Content-Type", jsonType,
			"Accept", "application/json, text/event-stream", "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25", "traceparent", parent)
		if a.status != http.StatusOK || !strings.Contains(a.body, `"id":1`) {
			t.Fatalf("%d %s", a.status, a.body)
		}
		request := c.one(t, id, "rejoin-sse-edge", "POST /mcp", client)
		ask := c.one(t, id, "rejoin-sse-edge", "send mcp.rpc.", request.id)
		answer := c.one(t, id, "rejoin-bridge", "process mcp.rpc.", ask.id)
		post := c.one(t, id, "rejoin-bridge", "POST", answer.id)
		if want := "00-" + id + "-" + post.id + "-01"; up.parent("tools/call") != want {
			t.Errorf("the MCP server got %q, want %q", up.parent("tools/call"), want)
		}
		publish := c.one(t, id, "rejoin-bridge", "publish ", answer.id)
		c.one(t, id, "rejoin-sse-edge", "deliver ", publish.id)
	})
	bridge.end(syscall.SIGTERM)
}

// Without traces nothing is exported, and the publisher's trace context continues as it is. TestTraces_OffByDefault
// has all settings that disable them.
func TestTrace_ContextPassesWithoutExport(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_SDK_DISABLED", "true")
	up := newUpstream(t)
	p := startProc(t, "--upstream="+up.URL, "--ack-timeout=9s")
	parent, _, _ := parentOf(1, "01")
	do(t, http.MethodPost, p.api()+streamPath("s", "t"), numbered(1), "Content-Type", jsonType, "traceparent", parent, "tracestate", "a=b")
	nc := p.nats(t)
	js := must.Value(nc.JetStream())(t)
	at := place(t, nc, "s", "t")
	msg, err := js.GetLastMsg(fmt.Sprintf("MCP_%d", at.Partition), at.String())
	if err != nil || msg.Header.Get("traceparent") != parent || msg.Header.Get("tracestate") != "a=b" {
		t.Errorf("the event has %v, %v", msg, err)
	}
	session := initialize(t, p.api())
	do(t, http.MethodPost, p.api()+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, "Content-Type", jsonType,
		"Accept", "application/json, text/event-stream", "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25", "traceparent", parent)
	if got := up.parent("tools/call"); got != parent {
		t.Errorf("the MCP server got %q", got)
	}
	p.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked > 0 {
		t.Errorf("there were %d exports: %v", c.asked, c.spans)
	}
}
