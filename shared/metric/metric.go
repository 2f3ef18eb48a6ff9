// Package metric makes metrics and registers them, each with one call. Like
// [prometheus.Registerer.MustRegister] its functions panic when a name is registered already.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Counter returns a new counter.
func Counter(reg prometheus.Registerer, name, help string) prometheus.Counter {
	return promauto.With(reg).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// CounterOf returns a new counter for each value of a label. Every series exists from the start:
// a rate over a series that appears with its first event misses that event.
func CounterOf(reg prometheus.Registerer, name, help, label string, values ...string) *prometheus.CounterVec {
	vec := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, value := range values {
		vec.WithLabelValues(value)
	}
	return vec
}

// CounterFunc registers a counter that f is called for.
func CounterFunc(reg prometheus.Registerer, name, help string, f func() float64) {
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f)
}

// Gauge returns a new gauge.
func Gauge(reg prometheus.Registerer, name, help string) prometheus.Gauge {
	return promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// GaugeFunc registers a gauge that f is called for.
func GaugeFunc(reg prometheus.Registerer, name, help string, f func() float64) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
}
