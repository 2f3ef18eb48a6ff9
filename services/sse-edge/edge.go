// Package edge streams events to clients: over Server-Sent Events, and as pages of
// JSON to those that poll.
package edge

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/front"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// Service is a running edge.
//
//	Run ─┬─ for each partition that is read: tail ──▶ window (and one goroutine of nats.go)
//	     │                      watch, looks         generations; a look after a jump
//	     ├─ attachments: which of several connections of an MCP client gets the messages
//	     ├─ presence.Serve: tells the janitor which sessions have visitors
//	     ├─ inspect.Serve: tells it who they are, and what was sent to them
//	     ├─ workers, one a processor: the cursor loop of all event streams
//	     ├─ front.Serve, with TLS: hands requests to web.Serve
//	     ├─ web.Serve ── for each request a goroutine of fasthttp
//	     │                 └─ for each event stream, once hijacked: a reader that
//	     │                    notices when the client goes
//	     └─ stops in this order: no new streams, streams closed over --drain, pages
//	        answered, listener closed, tails ended
type Service struct {
	cfg      Config
	nc       *nats.Conn
	log      *eventlog.Log
	sessions *session.Registry
	logger   *slog.Logger
	health   *daemon.Health
	app      *fiber.App
	ln       net.Listener
	front    *front.Server // nil without TLS
	subs     *subscriber.Service
	metrics  *metrics
	traces   *tracing.Traces
	memory   *quota.Pool // that clients may make the edge hold, in bytes

	base context.Context // of all streams; ends when they must
	end  context.CancelFunc

	attached *attachments
	unheard  unheard       // for tasks
	checks   chan struct{} // holds a token for each check in progress
	// checkEvery, unheardFor and requestTimeout are the constants, or a test's.
	checkEvery, unheardFor, requestTimeout time.Duration
}

// metrics are those of requests; none is labelled by session, stream or path.
type metrics struct {
	posts     *prometheus.CounterVec
	abandoned prometheus.Counter
	mcp       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rejoin", Subsystem: "edge", Name: name, Help: help})
	}
	// Every value is there from the start: a rate over a series that appears with
	// its first event misses that event.
	vec := func(name, help, label string, values ...string) *prometheus.CounterVec {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rejoin", Subsystem: "edge", Name: name,
			Help: help + ": " + strings.Join(values, ", ") + ".",
		}, []string{label})
		for _, value := range values {
			vec.WithLabelValues(value)
		}
		return vec
	}
	m := &metrics{
		posts: vec("mcp_posts_total", "POST requests of MCP clients, by how they were answered", "result",
			postOpened, postAccepted, postJSON, postStream, postRefused, postUnavailable),
		abandoned: counter("mcp_calls_abandoned_total", "MCP calls that were ended since no bridge had listened for a minute."),
		mcp:       prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rejoin", Subsystem: "edge", Name: "mcp_connections", Help: "Event streams of MCP clients that are open; they count as connections too."}),
	}
	reg.MustRegister(m.posts, m.abandoned, m.mcp)
	return m
}
