package ingest

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"rejoin/services/ingest/problem"
	"rejoin/shared/metric"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// The results of a publish, as the metric's label.
const (
	resultStored      = "stored"
	resultDuplicate   = "duplicate"
	resultRefused     = "refused"
	resultLimited     = "limited"
	resultUnavailable = "unavailable"
	resultUnknown     = "unknown"
)

// The results of a close, as the metric's label.
const (
	resultClosed   = "closed"
	resultNotFound = "not_found"
	resultFailed   = "failed"
)

// refusedRate is why a session is not opened, besides the reasons of a [session.FullError].
const refusedRate = "rate"

type metrics struct {
	published *prometheus.CounterVec
	bytes     prometheus.Counter
	seconds   prometheus.Histogram
	closes    *prometheus.CounterVec

	sessionsRefused *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, sessions func() float64, publishes *quota.Pool) *metrics {
	metric.GaugeFunc(registerer, "rejoin_ingest_inflight", "Publishes and closes under way.", func() float64 { return float64(publishes.Used()) })
	metric.GaugeFunc(registerer, "rejoin_ingest_sessions_ratio", "How much of --max-sessions or --max-metadata-bytes is taken, whichever is more.", sessions)
	return &metrics{
		published: metric.CounterOf(registerer, "rejoin_ingest_published_total",
			"Events by what became of them: stored, duplicate, refused for a reason of their own, limited (too many messages in a second, or too many streams), unavailable (the log did not take them), unknown (the log did not answer).",
			"result", resultStored, resultDuplicate, resultRefused, resultLimited, resultUnavailable, resultUnknown),
		bytes: metric.Counter(registerer, "rejoin_ingest_published_bytes_total", "Bytes of the messages that were stored, without duplicates."),
		seconds: promauto.With(registerer).NewHistogram(prometheus.HistogramOpts{
			Name:    "rejoin_ingest_publish_seconds",
			Help:    "Time from handing an event to the log to its acknowledgement or failure.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		closes: metric.CounterOf(registerer, "rejoin_ingest_closes_total", "Closes of sessions and streams by result: closed, not_found, failed.",
			"result", resultClosed, resultNotFound, resultFailed),
		sessionsRefused: metric.CounterOf(registerer, "rejoin_ingest_sessions_refused_total",
			"Sessions that were not opened: sessions (--max-sessions is reached), metadata (--max-metadata-bytes is), share (the client has its share of them), rate (--max-session-rate).",
			"reason", session.FullSessions, session.FullMetadata, session.FullShare, refusedRate),
	}
}

// closedAs counts a close by its result.
func (m *metrics) closedAs(err error) {
	result := resultClosed
	switch {
	case errors.Is(err, session.ErrNotFound):
		result = resultNotFound
	case err != nil:
		result = resultFailed
	}
	m.closes.WithLabelValues(result).Inc()
}

// publishedAs counts an event by the answer that its publisher gets.
func (m *metrics) publishedAs(ack stored, err error) {
	result := resultStored
	switch {
	case err != nil:
		switch p := problem.Of(err); {
		case p.Code == web.CodePublishUnknown:
			result = resultUnknown
		case p.Code == web.CodeRateLimited || p.Code == web.CodeTooManyStreams || p.Code == web.CodeTooManySessions:
			result = resultLimited
		case p.Status < 500:
			result = resultRefused
		default:
			result = resultUnavailable
		}
	case ack.Duplicate:
		result = resultDuplicate
	}
	m.published.WithLabelValues(result).Inc()
}
