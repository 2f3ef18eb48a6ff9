package cursor

import "github.com/prometheus/client_golang/prometheus"

// metrics count what the partitions of an edge do.
type metrics struct {
	received, missed, rollbacks, logReads, logScans prometheus.Counter
	skipped                                         *prometheus.CounterVec
}
