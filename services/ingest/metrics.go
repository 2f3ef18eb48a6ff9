package ingest

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/ingest/problem"
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
	inflight  prometheus.Gauge
	closes    *prometheus.CounterVec

	sessionsRefused *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, sessions func() float64) *metrics {
	m := &metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_ingest_published_total",
			Help: "Events by what became of them: stored, duplicate, refused for a reason of their own, limited (too many messages in a second, or too many streams), unavailable (the log did not take them), unknown (the log did not answer).",
		}, []string{"result"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_ingest_published_bytes_total",
			Help: "Bytes of the messages that were stored, without duplicates.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rejoin_ingest_publish_seconds",
			Help:    "Time from handing an event to the log to its acknowledgement or failure.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rejoin_ingest_inflight",
			Help: "Publishes and closes under way.",
		}),
		closes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_ingest_closes_total",
			Help: "Closes of sessions and streams by result: closed, not_found, failed.",
		}, []string{"result"}),
		sessionsRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_ingest_sessions_refused_total",
			Help: "Sessions that were not opened: sessions (--max-sessions is reached), metadata (--max-metadata-bytes is), share (the client has its share of them), rate (--max-session-rate).",
		}, []string{"reason"}),
	}
	for _, r := range []string{resultStored, resultDuplicate, resultRefused, resultLimited, resultUnavailable, resultUnknown} {
		m.published.WithLabelValues(r)
	}
	for _, r := range []string{resultClosed, resultNotFound, resultFailed} {
		m.closes.WithLabelValues(r)
	}
	for _, r := range []string{session.FullSessions, session.FullMetadata, session.FullShare, refusedRate} {
		m.sessionsRefused.WithLabelValues(r)
	}
	registerer.MustRegister(m.published, m.bytes, m.seconds, m.inflight, m.closes, m.sessionsRefused,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rejoin_ingest_sessions_ratio",
			Help: "How much of --max-sessions or --max-metadata-bytes is taken, whichever is more.",
		}, sessions))
	return m
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
