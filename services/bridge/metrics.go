package bridge

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/rpc"
)

// actionInvalid stands for what is no action, as the metric's label.
const actionInvalid = "invalid"

// What became of a message, as the metric's label.
const (
	resultStored    = "stored"
	resultDuplicate = "duplicate"
)

// Why a message of the upstream was left out, as the metric's label.
const (
	dropInvalid  = "invalid"
	dropTooLarge = "too_large"
	dropLate     = "late"
)

// Why a request ended with the bridge's error, as the metric's label.
const (
	failRefused  = "refused"
	failTimeout  = "timeout"
	failTooLarge = "too_large"
	failLost     = "lost"
	failUnknown  = "unknown"
)

// Whether a request was answered with a result of another, as the metric's label.
const (
	cacheHit  = "hit"
	cacheMiss = "miss"
)

type metrics struct {
	cached         *prometheus.CounterVec
	answers        *prometheus.CounterVec
	messages       *prometheus.CounterVec
	dropped        *prometheus.CounterVec
	failures       *prometheus.CounterVec
	retries        prometheus.Counter
	resumes        prometheus.Counter
	takeovers      prometheus.Counter
	sessions       prometheus.Gauge
	calls          prometheus.Gauge
	processes      prometheus.Gauge
	acceptSeconds  prometheus.Histogram
	publishSeconds prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_answers_total",
			Help: "What edges asked for, by action (open, post, end, check, invalid) and the class of the answer's status (2xx, 4xx, 5xx).",
		}, []string{"action", "status"}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_messages_total",
			Help: "Messages for the log by what became of them: stored, or duplicate, which were stored before.",
		}, []string{"result"}),
		cached: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_cache_requests_total",
			Help: "Requests whose result may be kept for other clients: hit, which one kept answered, or miss, which the MCP server got.",
		}, []string{"result"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_dropped_messages_total",
			Help: "Messages of the MCP server that were left out: invalid, too_large, or late, for a request that is over.",
		}, []string{"reason"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_bridge_failed_calls_total",
			Help: "Calls that ended with an error of the bridge's: refused (later than --accept-after), timeout, too_large (a response), lost (no response), unknown (an edge asked for a call that no bridge works on).",
		}, []string{"reason"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_bridge_publish_retries_total",
			Help: "Attempts to store a message that the log did not acknowledge.",
		}),
		resumes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_bridge_upstream_resumes_total",
			Help: "Streams of the MCP server that broke or were ended, and that it resumed.",
		}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_bridge_takeovers_total",
			Help: "Sessions that were there when the bridge started.",
		}),
		sessions:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "rejoin_bridge_sessions", Help: "Sessions that this bridge holds."}),
		calls:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "rejoin_bridge_calls", Help: "Calls that are open; a batch of requests is one."}),
		processes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rejoin_bridge_processes", Help: "Processes of the MCP server that run."}),
		acceptSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rejoin_bridge_answer_seconds", Help: "Time until an edge is answered.", Buckets: buckets,
		}),
		publishSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rejoin_bridge_publish_seconds", Help: "Time of an attempt to store a message.", Buckets: buckets,
		}),
	}
	for _, action := range []string{string(rpc.Open), string(rpc.Post), string(rpc.End), string(rpc.Check), actionInvalid} {
		for _, status := range []string{"2xx", "4xx", "5xx"} {
			m.answers.WithLabelValues(action, status)
		}
	}
	for _, r := range []string{resultStored, resultDuplicate} {
		m.messages.WithLabelValues(r)
	}
	for _, r := range []string{dropInvalid, dropTooLarge, dropLate} {
		m.dropped.WithLabelValues(r)
	}
	for _, r := range []string{failRefused, failTimeout, failTooLarge, failLost, failUnknown} {
		m.failures.WithLabelValues(r)
	}
	for _, r := range []string{cacheHit, cacheMiss} {
		m.cached.WithLabelValues(r)
	}
	registerer.MustRegister(m.cached, m.answers, m.messages, m.dropped, m.failures, m.retries, m.resumes, m.takeovers, m.sessions, m.calls, m.processes, m.acceptSeconds, m.publishSeconds)
	return m
}

// answered counts an answer.
func (m *metrics) answered(action rpc.Action, status int) {
	switch action {
	case rpc.Open, rpc.Post, rpc.End, rpc.Check:
	default:
		action = actionInvalid
	}
	m.answers.WithLabelValues(string(action), strconv.Itoa(status/100)+"xx").Inc()
}
