package delivery

import (
	"cmp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"rejoin/services/sse-edge/cursor"
	"rejoin/shared/metric"
)

// Metrics count event streams; none is labelled by session, stream or path.
//
// A new value of a label is there from the start, and stands in docs/metrics.md.
type Metrics struct {
	Connections   prometheus.Gauge
	Blocked       prometheus.Gauge
	Opened        prometheus.Counter
	Closed        *prometheus.CounterVec
	Refused       *prometheus.CounterVec
	Sent          prometheus.Counter
	sentBytes     prometheus.Counter
	BlockedWrites prometheus.Counter
	Delivery      prometheus.Histogram
	Gaps          *prometheus.CounterVec
}

// NewMetrics registers the metrics; maxConnections is the limit of open streams.
func NewMetrics(reg prometheus.Registerer, maxConnections int) *Metrics {
	gauge := func(name, help string) prometheus.Gauge { return metric.Gauge(reg, "rejoin_edge_"+name, help) }
	counter := func(name, help string) prometheus.Counter { return metric.Counter(reg, "rejoin_edge_"+name, help) }
	byReason := func(name, help string, values ...string) *prometheus.CounterVec {
		return metric.CounterOf(reg, "rejoin_edge_"+name, help+", by reason: "+strings.Join(values, ", ")+".", "reason", values...)
	}
	gauge("connections_limit", "Event streams that may be open at a time.").Set(float64(maxConnections))
	return &Metrics{
		Connections: gauge("connections", "Event streams that are open."),
		Blocked:     gauge("connections_blocked", "Event streams whose client's socket is full: the slow clients of this moment."),
		Opened:      counter("connections_opened_total", "Event streams that were opened."),
		Closed: byReason("connections_closed_total", "Event streams that ended",
			"ended", "gone", "age", "limit", "expired", "revoked", "drain", "slow", "failed"),
		Refused: byReason("connections_refused_total", "Event streams and polls that were told to come back later",
			"drain", "limit", "session_limit", "address_limit", "share_limit", "address_rate", "unavailable"),
		Sent:          counter("events_sent_total", "Events written to event streams and pages."),
		sentBytes:     counter("sent_bytes_total", "Bytes written to event streams."),
		BlockedWrites: counter("blocked_writes_total", "Writes to event streams that found the client's socket full."),
		Delivery: promauto.With(reg).NewHistogram(prometheus.HistogramOpts{
			Name:    "rejoin_edge_delivery_seconds",
			Help:    "Time from an event's entry into the log, by the clock of the NATS server, until it was handed to a client's socket: the oldest event of each write to an event stream that was waiting for it. Replays, and clients that were behind, do not count.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		Gaps: byReason("gaps_total", "Gaps that were told",
			string(cursor.ReasonUnknown), string(cursor.ReasonExpired), string(cursor.ReasonTrimmed), string(cursor.ReasonCleared), string(cursor.ReasonRolledBack), string(cursor.ReasonDamaged)),
	}
}

// clockEvery is for how many writes of a round the clock is read once. A read costs 60 ns, an observation too, and
// a write 4 µs; so the time of a write is known to less than a tenth of a millisecond.
const clockEvery = 16

// stopwatch times the deliveries of a worker's round.
type stopwatch struct {
	n   int   // deliveries of the round
	now int64 // when the clock was read
}

// since returns the time from the store of an event, in nanoseconds since 1970, to its write, in seconds. It is 0 when
// the NATS server's clock is ahead.
func (s *stopwatch) since(stored int64) float64 {
	if s.n%clockEvery == 0 {
		s.now = time.Now().UnixNano()
	}
	s.n++
	return time.Duration(max(s.now-stored, 0)).Seconds()
}

// CountRefused counts an event stream or a poll that was refused for the moment.
func (s *Connections) CountRefused(reason string) { s.Metrics.Refused.WithLabelValues(reason).Inc() }

// CountTold counts and notes the part of a step that a client received: its gaps, and n of its events.
func (s *Connections) CountTold(r *cursor.Reader, step cursor.Step, n int, by Request) {
	n = min(n, len(step.Items))
	s.Metrics.Sent.Add(float64(n))
	for _, g := range step.Gaps {
		s.Metrics.Gaps.WithLabelValues(string(g.Reason)).Inc()
		s.History.noteGap(r, step, g, by)
		s.cfg.Logger.DebugContext(by.Ctx, "a subscriber receives a gap", "session", cmp.Or(g.Session, r.Place.Session), "stream", g.Stream,
			"reason", string(g.Reason), "certain", g.Certain, "requested", g.Requested)
	}
	if !s.cfg.Traces.On() {
		return
	}
	for i := range n {
		if it := &step.Items[i]; it.Trail != nil {
			s.deliver(it, by)
		}
	}
}
