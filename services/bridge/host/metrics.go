package host

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"rejoin/shared/metric"
	"rejoin/shared/rpc"
)

// actionInvalid is the metric's label for a request without a valid action.
const actionInvalid = "invalid"

// actions are those of the requests of edges.
var actions = []rpc.Action{rpc.Open, rpc.Request, rpc.Cancel, rpc.Post, rpc.End, rpc.Check}

// The outcome of a message, as the metric's label.
const (
	ResultStored    = "stored"
	ResultDuplicate = "duplicate"
)

// Why a message of the upstream was left out, as the metric's label.
const (
	DropInvalid  = "invalid"
	DropTooLarge = "too_large"
	DropLate     = "late"
)

// Why a request ended with the bridge's error, as the metric's label.
const (
	FailRefused  = "refused"
	FailTimeout  = "timeout"
	FailTooLarge = "too_large"
	FailLost     = "lost"
	FailUnknown  = "unknown"
)

// Whether a request was answered with a result of another, as the metric's label.
const (
	CacheHit  = "hit"
	CacheMiss = "miss"
)

// Metrics are those of a bridge.
type Metrics struct {
	Cached         *prometheus.CounterVec
	answers        *prometheus.CounterVec
	Messages       *prometheus.CounterVec
	Dropped        *prometheus.CounterVec
	Failures       *prometheus.CounterVec
	Retries        prometheus.Counter
	Resumes        prometheus.Counter
	Takeovers      prometheus.Counter
	Sessions       prometheus.Gauge
	Calls          prometheus.Gauge
	AcceptSeconds  prometheus.Histogram
	PublishSeconds prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer) *Metrics {
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	counter := func(name, help string) prometheus.Counter {
		return metric.Counter(registerer, "rejoin_bridge_"+name, help)
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		return metric.CounterOf(registerer, "rejoin_bridge_"+name, help, label, values...)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return metric.Gauge(registerer, "rejoin_bridge_"+name, help)
	}
	histogram := func(name, help string) prometheus.Histogram {
		return promauto.With(registerer).NewHistogram(prometheus.HistogramOpts{Name: "rejoin_bridge_" + name, Help: help, Buckets: buckets})
	}
	m := &Metrics{
		answers: promauto.With(registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_answers_total",
			Help: "Requests of edges, by action (open, request, cancel, post, end, check, invalid) and the class of the answer's status (2xx, 4xx, 5xx).",
		}, []string{"action", "status"}),
		Messages: counters("messages_total", "Messages for the log by what became of them: stored, or duplicate, which were stored before.",
			"result", ResultStored, ResultDuplicate),
		Cached: counters("cache_requests_total", "Requests whose result may be kept for other clients: hit, which one kept answered, or miss, which the MCP server got.",
			"result", CacheHit, CacheMiss),
		Dropped: counters("dropped_messages_total", "Messages of the MCP server that were left out: invalid, too_large, or late, for a request that is over.",
			"reason", DropInvalid, DropTooLarge, DropLate),
		Failures: counters("failed_calls_total", "Calls that ended with an error of the bridge's: refused (later than --accept-after), timeout, too_large (a response), lost (no response), unknown (an edge asked for a call that no bridge works on).",
			"reason", FailRefused, FailTimeout, FailTooLarge, FailLost, FailUnknown),
		Retries:        counter("publish_retries_total", "Attempts to store a message that the log did not acknowledge."),
		Resumes:        counter("upstream_resumes_total", "Streams of the MCP server that broke or were ended, and that it resumed."),
		Takeovers:      counter("takeovers_total", "Sessions that were there when the bridge started."),
		Sessions:       gauge("sessions", "Sessions that this bridge holds."),
		Calls:          gauge("calls", "Calls that are open; a batch of requests is one."),
		AcceptSeconds:  histogram("answer_seconds", "Time until an edge is answered."),
		PublishSeconds: histogram("publish_seconds", "Time of an attempt to store a message."),
	}
	for _, action := range append([]rpc.Action{actionInvalid}, actions...) {
		for _, status := range []string{"2xx", "4xx", "5xx"} {
			m.answers.WithLabelValues(string(action), status)
		}
	}
	return m
}

// Answered counts an answer.
func (m *Metrics) Answered(action rpc.Action, status int) {
	if !slices.Contains(actions, action) {
		action = actionInvalid
	}
	m.answers.WithLabelValues(string(action), strconv.Itoa(status/100)+"xx").Inc()
}
