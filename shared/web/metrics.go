package web

import (
	"strconv"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(service string, registerer prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_" + service + "_http_requests_total",
			Help: "HTTP requests answered, by method and status. The method other stands for all rare methods, and for requests refused before they were routed.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rejoin_" + service + "_http_request_duration_seconds",
			Help:    "Time that handlers took, without reading the request and writing the response.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method"}),
	}
	// A rate over a series that appears with its first request misses that one; so the series
	// that must not be overlooked exist from the start.
	for _, method := range []string{fiber.MethodGet, fiber.MethodPost, fiber.MethodPut, fiber.MethodDelete, methodOther} {
		for _, status := range []int{fiber.StatusInternalServerError, fiber.StatusServiceUnavailable} {
			m.requests.WithLabelValues(method, strconv.Itoa(status))
		}
	}
	registerer.MustRegister(m.requests, m.duration)
	return m
}

func (m *metrics) count(method string, resp *fasthttp.Response) {
	m.requests.WithLabelValues(method, strconv.Itoa(resp.StatusCode())).Inc()
}

// methodOther is the label of all rare methods, and of requests refused before they were routed.
const methodOther = "other"

// methodLabel bounds the values of the label, which clients choose.
// Constants, since Fiber's string lives only as long as its request.
func methodLabel(method string) string {
	for _, m := range [...]string{fiber.MethodGet, fiber.MethodPost, fiber.MethodDelete, fiber.MethodHead, fiber.MethodOptions, fiber.MethodPut, fiber.MethodPatch} {
		if m == method {
			return m
		}
	}
	return methodOther
}
