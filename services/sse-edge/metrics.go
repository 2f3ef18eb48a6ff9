package edge

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of requests; none is labelled by session, stream or path.
type metrics struct {
	pages     prometheus.Counter
	resumes   *prometheus.CounterVec
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
		pages:   counter("pages_total", "Pages answered to polls."),
		resumes: vec("resumes_total", "Subscribers that came with a cursor, by where it pointed", "from", "window", "log"),
		posts: vec("mcp_posts_total", "POST requests of MCP clients, by how they were answered", "result",
			postOpened, postAccepted, postJSON, postStream, postRefused, postUnavailable),
		abandoned: counter("mcp_calls_abandoned_total", "MCP calls that were ended since no bridge had listened for a minute."),
		mcp:       prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rejoin", Subsystem: "edge", Name: "mcp_connections", Help: "Event streams of MCP clients that are open; they count as connections too."}),
	}
	reg.MustRegister(m.pages, m.resumes, m.posts, m.abandoned, m.mcp)
	return m
}
