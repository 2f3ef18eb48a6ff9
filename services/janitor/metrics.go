package janitor

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
	"rejoin/shared/metric"
)

type metrics struct {
	trimmed     *prometheus.CounterVec
	trims       prometheus.Counter
	deleted     prometheus.Counter
	copies      prometheus.Counter
	floors      *prometheus.CounterVec
	sweep       prometheus.Histogram
	failed      prometheus.Counter
	duties      *prometheus.CounterVec
	generations prometheus.Counter
}

// newMetrics registers the service's metrics. The gauges are read from the ledgers
// when they are collected.
func newMetrics(registerer prometheus.Registerer, partitions []*follow.Partition, actingFor func() []*follow.Partition) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return metric.Counter(registerer, "rejoin_janitor_"+name, help)
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		return metric.CounterOf(registerer, "rejoin_janitor_"+name, help, label, values...)
	}
	var reasons []string
	for _, r := range ledger.Causes {
		reasons = append(reasons, string(r))
	}
	m := &metrics{
		trimmed: counters("trimmed_events_total", "Events that the janitor announced to be removed, by reason.", "reason", reasons...),
		trims:   counter("trims_total", "Entries of the log with which the janitor announced what is removed."),
		deleted: counter("deleted_entries_total", "Entries that the janitor deleted from the log, after they were announced to be removed."),
		copies:  counter("copies_total", "Openings, births and ends that the janitor wrote again, so that the oldest part of the log can go."),
		floors: counters("floor_moves_total", "How often the oldest part of a partition was removed: for its age, or because the partition was full.",
			"reason", ledger.ByAge, ledger.ByVolume),
		sweep: promauto.With(registerer).NewHistogram(prometheus.HistogramOpts{
			Name:    "rejoin_janitor_sweep_duration_seconds",
			Help:    "Time that sweeps took, and trimmings of sessions between them.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60},
		}),
		failed: counter("failed_sweeps_total", "Sweeps, and trimmings of sessions between them, that were left unfinished. The next sweep continues."),
		duties: counters("registry_records_total", "Sessions whose record the janitor repaired from the log or removed, or which it closed because they were idle, or finished closing.",
			"task", ledger.Repair.String(), ledger.CloseIdle.String(), ledger.Finish.String(), ledger.Remove.String()),
		generations: counter("generations_begun_total", "Generations of partitions that were begun because the server was restarted, or most of the servers of a cluster that hold the partition at once."),
	}
	sum := func(value func(*ledger.Ledger) float64) func() float64 {
		return func() float64 {
			sum := 0.0
			for _, p := range partitions {
				p.With(func(l *ledger.Ledger) { sum += value(l) })
			}
			return sum
		}
	}
	gauge := func(name, help string, value func(*ledger.Ledger) float64) {
		metric.GaugeFunc(registerer, "rejoin_janitor_"+name, help, sum(value))
	}
	gauge("retained_events", "Events in the log that are not announced to be removed.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Events) })
	gauge("retained_bytes", "Bytes of the messages in the log.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Bytes) })
	gauge("sessions", "Sessions with events in the log.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Sessions) })
	gauge("pending_entries", "Entries that are announced to be removed and not deleted yet.", func(l *ledger.Ledger) float64 { return float64(l.ToDelete()) })
	gauge("streams", "Streams with events in the log.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Streams) })
	metric.CounterFunc(registerer, "rejoin_janitor_floor_removed_events_total", "Events that went with the oldest part of a partition, for their age or because the partition was full, as the ledgers saw it.", sum(func(l *ledger.Ledger) float64 { return float64(l.Passed) }))
	registerLog(registerer, actingFor)
	metric.GaugeFunc(registerer, "rejoin_janitor_lag_events", "Entries that the ledgers have yet to follow the log by, as last seen.", func() float64 {
		sum := 0.0
		for _, p := range actingFor() {
			state, _ := p.Log.State(p.Number)
			p.With(func(l *ledger.Ledger) {
				if state.Last > l.Through {
					sum += float64(state.Last - l.Through)
				}
			})
		}
		return sum
	})
	metric.GaugeFunc(registerer, "rejoin_janitor_partitions_held", "Partitions that this janitor acts for.", func() float64 { return float64(len(actingFor())) })
	metric.GaugeFunc(registerer, "rejoin_janitor_partitions", "Partitions of the log.", func() float64 { return float64(len(partitions)) })
	return m
}

// registerLog registers the gauges of the log's bytes, limits and replicas.
func registerLog(registerer prometheus.Registerer, actingFor func() []*follow.Partition) {
	gauge := func(name, help string, add func(total float64, s eventlog.State) float64) {
		metric.GaugeFunc(registerer, "rejoin_janitor_log_"+name, help, func() float64 {
			total := 0.0
			for _, p := range actingFor() {
				state, _ := p.Log.State(p.Number)
				total = add(total, state)
			}
			return total
		})
	}
	gauge("bytes", "Bytes of the log as JetStream counts them, of one replica.", func(total float64, s eventlog.State) float64 {
		return total + float64(s.Bytes)
	})
	gauge("max_bytes", "Bytes that the log may take; +Inf without a limit.", func(total float64, s eventlog.State) float64 {
		return total + maxBytes(s)
	})
	gauge("fullest_partition_ratio", "How full the fullest partition is, from 0 to 1; 0 without a limit. From 0.875 on its oldest events go, however young they are; at 1 it refuses events.", func(total float64, s eventlog.State) float64 {
		return max(total, float64(s.Bytes)/maxBytes(s))
	})
	gauge("under_replicated_partitions", "Partitions that have lacked a current replica for half a minute.", func(total float64, s eventlog.State) float64 {
		if underReplicated(s, time.Now()) {
			total++
		}
		return total
	})
}

// wholeWithin is how long a partition may lack a replica: under load the slowest server lacks the newest entry
// at most looks, and a server that is restarted runs again by then.
const wholeWithin = 30 * time.Second

func underReplicated(s eventlog.State, now time.Time) bool {
	return s.Current < s.Limits.Replicas && now.Sub(s.Whole) > wholeWithin
}

// maxBytes returns how many bytes a partition may take.
func maxBytes(s eventlog.State) float64 {
	if s.Limits.MaxBytes <= 0 {
		return math.Inf(1)
	}
	return float64(s.Limits.MaxBytes)
}
