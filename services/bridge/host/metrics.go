package host

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/rpc"
)

// actionInvalid stands for what is no action, as the metric's label.
const actionInvalid = "invalid"

// actions are what edges ask for.
var actions = []rpc.Action{rpc.Open, rpc.Request, rpc.Cancel, rpc.Post, rpc.End, rpc.Check}

// What became of a message, as the metric's label.
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

// Metrics are what a bridge counts.
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
	Processes      prometheus.Gauge
	AcceptSeconds  prometheus.Histogram
	PublishSeconds prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer) *Metrics {
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m := &Metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_answers_total",
			Help: "What edges asked for, by action (open, request, cancel, post, end, check, invalid) and the class of the answer's status (2xx, 4xx, 5xx).",
		}, []string{"action", "status"}),
		Messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_messages_total",
			Help: "Messages for the log by what became of them: stored, or duplicate, which were stored before.",
		}, []string{"result"}),
		Cached: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_cache_requests_total",
			Help: "Requests whose result may be kept for other clients: hit, which one kept answered, or miss, which the MCP server got.",
		}, []string{"result"}),
		Dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_dropped_messages_total",
			Help: "Messages of the MCP server that were left out: invalid, too_large, or late, for a request that is over.",
		}, []string{"reason"}),
		Failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_failed_calls_total",
			Help: "Calls that ended with an error of the bridge's: refused (later than --accept-after), timeout, too_large (a response), lost (no response), unknown (an edge asked for a call that no bridge works on).",
		}, []string{"reason"}),
		Retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_bridge_publish_retries_total",
			Help: "Attempts to store a message that the log did not acknowledge.",
		}),
		Resumes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_bridge_upstream_resumes_total",
			Help: "Streams of the MCP server that broke or were ended, and that it resumed.",
		}),
		Takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_bridge_takeovers_total",
			Help: "Sessions that were there when the bridge started.",
		}),
		Sessions:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "rejoin_bridge_sessions", Help: "Sessions that this bridge holds."}),
		Calls:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "rejoin_bridge_calls", Help: "Calls that are open; a batch of requests is one."}),
		Processes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rejoin_bridge_processes", Help: "Processes of the MCP server that run."}),
		AcceptSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rejoin_bridge_answer_seconds", Help: "Time until an edge is answered.", Buckets: buckets,
		}),
		PublishSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rejoin_bridge_publish_seconds", Help: "Time of an attempt to store a message.", Buckets: buckets,
		}),
	}
	for _, action := range append([]rpc.Action{actionInvalid}, actions...) {
		for _, status := range []string{"2xx", "4xx", "5xx"} {
			m.answers.WithLabelValues(string(action), status)
		}
	}
	for _, r := range []string{ResultStored, ResultDuplicate} {
		m.Messages.WithLabelValues(r)
	}
	for _, r := range []string{DropInvalid, DropTooLarge, DropLate} {
		m.Dropped.WithLabelValues(r)
	}
	for _, r := range []string{FailRefused, FailTimeout, FailTooLarge, FailLost, FailUnknown} {
		m.Failures.WithLabelValues(r)
	}
	for _, r := range []string{CacheHit, CacheMiss} {
		m.Cached.WithLabelValues(r)
	}
	registerer.MustRegister(m.Cached, m.answers, m.Messages, m.Dropped, m.Failures, m.Retries, m.Resumes, m.Takeovers, m.Sessions, m.Calls, m.Processes, m.AcceptSeconds, m.PublishSeconds)
	return m
}

// Answered counts an answer.
func (m *Metrics) Answered(action rpc.Action, status int) {
	if !slices.Contains(actions, action) {
		action = actionInvalid
	}
	m.answers.WithLabelValues(string(action), strconv.Itoa(status/100)+"xx").Inc()
}
