// Package mcpedge is the edge as clients of MCP see it: Streamable HTTP, of revisions with and
// without sessions, the transport before it, tasks, and MCP Events. Requests go to a bridge, and
// what belongs to them comes from the log, as event streams of package delivery.
package mcpedge

import (
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
)

// Service answers clients of MCP. It is safe for concurrent use.
type Service struct {
	cfg      Config
	subs     *subscriber.Service
	nc       *nats.Conn
	log      *eventlog.Log
	sessions *session.Registry
	logger   *slog.Logger
	metrics  *metrics
	traces   *tracing.Traces

	attached *attachments
	unheard  unheard       // for tasks
	checks   chan struct{} // holds a token for each check in progress
	// checkEvery, unheardFor and requestTimeout are the constants, or a test's.
	checkEvery, unheardFor, requestTimeout time.Duration
}

// The results of a POST, as the metric's label.
const (
	postOpened      = "opened"      // initialize made a session
	postAccepted    = "accepted"    // no request was in it
	postJSON        = "json"        // answered with JSON
	postStream      = "stream"      // answered with an event stream
	postRefused     = "refused"     // by the edge or the upstream
	postUnavailable = "unavailable" // for a while
)

// metrics are those of requests; none is labelled by session, stream or path.
type metrics struct {
	posts       *prometheus.CounterVec
	abandoned   prometheus.Counter
	connections prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	results := []string{postOpened, postAccepted, postJSON, postStream, postRefused, postUnavailable}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "rejoin", Subsystem: "edge", Name: name, Help: help}
	}
	m := &metrics{
		posts: prometheus.NewCounterVec(prometheus.CounterOpts(opts("mcp_posts_total",
			"POST requests of MCP clients, by how they were answered: "+strings.Join(results, ", ")+".")), []string{"result"}),
		abandoned:   prometheus.NewCounter(prometheus.CounterOpts(opts("mcp_calls_abandoned_total", "MCP calls that were ended since no bridge had listened for 17 seconds."))),
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("mcp_connections", "Event streams of MCP clients that are open; they count as connections too."))),
	}
	// Every value is there from the start: a rate over a series that appears with
	// its first event misses that event.
	for _, result := range results {
		m.posts.WithLabelValues(result)
	}
	reg.MustRegister(m.posts, m.abandoned, m.connections)
	return m
}
