// Package mcpedge is the edge as clients of MCP see it: Streamable HTTP, of revisions with and
// without sessions, the transport before it, tasks, and MCP Events. Requests go to a bridge, and
// their messages come from the log, as event streams of package delivery.
package mcpedge

import (
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/eventlog"
	"rejoin/shared/metric"
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
	// checkEvery, unheardFor, requestTimeout, takenTimeout and bridgeWait are the constants, or a test's.
	checkEvery, unheardFor, requestTimeout, takenTimeout, bridgeWait time.Duration
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
	return &metrics{
		posts: metric.CounterOf(reg, "rejoin_edge_mcp_posts_total",
			"POST requests of MCP clients, by how they were answered: "+strings.Join(results, ", ")+".", "result", results...),
		abandoned:   metric.Counter(reg, "rejoin_edge_mcp_calls_abandoned_total", "MCP calls that were ended since no bridge had listened for 17 seconds."),
		connections: metric.Gauge(reg, "rejoin_edge_mcp_connections", "Event streams of MCP clients that are open; they count as connections too."),
	}
}
