package delivery

import (
	"cmp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/cursor"
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
	Delivery      *delivery
	Gaps          *prometheus.CounterVec
}

// NewMetrics registers them; the limit is that of open streams.
func NewMetrics(reg prometheus.Registerer, maxConnections int) *Metrics {
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
	m := &Metrics{
		Connections: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rejoin", Subsystem: "edge", Name: "connections", Help: "Event streams that are open."}),
		Blocked:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rejoin", Subsystem: "edge", Name: "connections_blocked", Help: "Event streams whose client's socket is full: the slow clients of this moment."}),
		Opened:      counter("connections_opened_total", "Event streams that were opened."),
		Closed: vec("connections_closed_total", "Event streams that ended, by reason", "reason",
			"ended", "gone", "age", "limit", "expired", "revoked", "drain", "slow", "failed"),
		Refused: vec("connections_refused_total", "Event streams and polls that were told to come back later, by reason", "reason",
			"drain", "limit", "session_limit", "address_limit", "share_limit", "address_rate", "unavailable"),
		Sent:          counter("events_sent_total", "Events written to event streams and pages."),
		sentBytes:     counter("sent_bytes_total", "Bytes written to event streams."),
		BlockedWrites: counter("blocked_writes_total", "Writes to event streams that found the client's socket full."),
		Delivery:      newDelivery(),
		Gaps: vec("gaps_total", "Gaps that were told, by reason", "reason",
			string(cursor.ReasonUnknown), string(cursor.ReasonExpired), string(cursor.ReasonTrimmed), string(cursor.ReasonCleared), string(cursor.ReasonRolledBack), string(cursor.ReasonDamaged)),
	}
	limit := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rejoin", Subsystem: "edge", Name: "connections_limit", Help: "Event streams that may be open at a time."})
	limit.Set(float64(maxConnections))
	reg.MustRegister(m.Connections, limit, m.Blocked, m.Opened, m.Closed, m.Refused, m.Sent, m.sentBytes, m.BlockedWrites, m.Delivery, m.Gaps)
	return m
}

// CountRefused counts an event stream or a poll that was told to come back later.
func (s *Streams) CountRefused(reason string) { s.Metrics.Refused.WithLabelValues(reason).Inc() }

// CountTold counts and notes what a client received of a step: its gaps, and n of its events.
func (s *Streams) CountTold(r *cursor.Reader, st cursor.Step, n int, by Request) {
	n = min(n, len(st.Items))
	s.Metrics.Sent.Add(float64(n))
	for _, g := range st.Gaps {
		s.Metrics.Gaps.WithLabelValues(string(g.Reason)).Inc()
		s.History.noteGap(r, st, g, by)
		s.logger.DebugContext(by.Ctx, "a subscriber receives a gap", "session", cmp.Or(g.Session, r.Place.Session), "stream", g.Stream,
			"reason", string(g.Reason), "certain", g.Certain, "requested", g.Requested)
	}
	if !s.traces.On() {
		return
	}
	for i := range n {
		if it := &st.Items[i]; it.Trail != nil {
			s.deliver(it, by)
		}
	}
}
