package cursor

import (
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/metric"
)

// newMetrics registers the metrics of an edge's partitions. It calls parts at each scrape.
func newMetrics(reg prometheus.Registerer, parts func() []*Partition) *metrics {
	counter := func(name, help string) prometheus.Counter { return metric.Counter(reg, "rejoin_edge_"+name, help) }
	gauge := func(name, help string, value func(*Partition) float64) {
		metric.GaugeFunc(reg, "rejoin_edge_"+name, help, func() float64 {
			total := 0.0
			for _, p := range parts() {
				total += value(p)
			}
			return total
		})
	}
	gauge("partitions_followed", "Partitions of the log that the edge follows, since clients read them or did lately.", func(*Partition) float64 { return 1 })
	gauge("window_events", "Events that the windows hold.", func(p *Partition) float64 { return float64(p.window.Stats().Events) })
	gauge("window_bytes", "Bytes that the windows take.", func(p *Partition) float64 { return float64(p.window.Stats().Bytes) })
	gauge("lag_events", "Entries that the windows have yet to follow the log by, as last seen.", (*Partition).lag)
	return &metrics{
		received:  counter("events_received_total", "Entries of the log that the tails received, control entries and those that are not shown included."),
		missed:    counter("tail_missed_total", "Sequences that were removed before a tail received them."),
		rollbacks: counter("rollbacks_total", "Times that a partition was found rolled back."),
		logReads:  counter("log_reads_total", "Pages read from the log one by one for cursors below the window."),
		logScans:  counter("log_scans_total", "Reads of a whole partition for all cursors that waited below the window."),
		skipped: metric.CounterOf(reg, "rejoin_edge_events_skipped_total", "Entries of the log that are not shown, by reason: subject, json, opening, trim.",
			"reason", "subject", "json", "opening", "trim"),
	}
}
