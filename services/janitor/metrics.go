package janitor

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/janitor/follow"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/eventlog"
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
// when they are asked for.
func newMetrics(registerer prometheus.Registerer, partitions []*follow.Partition, actingFor func() []*follow.Partition) *metrics {
	m := &metrics{
		trimmed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_janitor_trimmed_events_total",
			Help: "Events that the janitor announced to be removed, by reason.",
		}, []string{"reason"}),
		trims: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_janitor_trims_total",
			Help: "Entries of the log with which the janitor announced what is removed.",
		}),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_janitor_deleted_entries_total",
			Help: "Entries that the janitor deleted from the log, after they were announced to be removed.",
		}),
		copies: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_janitor_copies_total",
			Help: "Openings, births and ends that the janitor wrote again, so that the oldest part of the log can go.",
		}),
		floors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_janitor_floor_moves_total",
			Help: "How often the oldest part of a partition was removed: for its age, or because the partition was full.",
		}, []string{"reason"}),
		sweep: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rejoin_janitor_sweep_duration_seconds",
			Help:    "Time that sweeps took, and trimmings of sessions between them.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60},
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_janitor_failed_sweeps_total",
			Help: "Sweeps, and trimmings of sessions between them, that were left unfinished. The next sweep continues.",
		}),
		duties: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rejoin_janitor_registry_records_total",
			Help: "Sessions whose record the janitor repaired from the log or removed, or which it closed because they were idle, or finished closing.",
		}, []string{"task"}),
		generations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rejoin_janitor_generations_begun_total",
			Help: "Generations of partitions that were begun because the server was restarted, or most of the servers of a cluster that hold the partition at once.",
		}),
	}
	for _, r := range ledger.Reasons {
		m.trimmed.WithLabelValues(string(r))
	}
	for _, t := range []ledger.Task{ledger.Repair, ledger.CloseIdle, ledger.Finish, ledger.Remove} {
		m.duties.WithLabelValues(t.String())
	}
	for _, why := range []string{ledger.ByAge, ledger.ByVolume} {
		m.floors.WithLabelValues(why)
	}
	registerer.MustRegister(m.trimmed, m.trims, m.deleted, m.copies, m.floors, m.sweep, m.failed, m.duties, m.generations)
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
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rejoin_janitor_" + name, Help: help}, sum(value)))
	}
	gauge("retained_events", "Events in the log that are not announced to be removed.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Events) })
	gauge("retained_bytes", "Bytes of the messages in the log.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Bytes) })
	gauge("sessions", "Sessions with events in the log.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Sessions) })
	gauge("pending_entries", "Entries that are announced to be removed and not deleted yet.", func(l *ledger.Ledger) float64 { return float64(l.ToDelete()) })
	gauge("streams", "Streams with events in the log.", func(l *ledger.Ledger) float64 { return float64(l.Totals.Streams) })
	registerer.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rejoin_janitor_tail_missed_total",
		Help: "Sequences that were deleted before a tail received them, most of them before it began.",
	}, sum(func(l *ledger.Ledger) float64 { return float64(l.Missed) })))
	registerer.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rejoin_janitor_floor_removed_events_total",
		Help: "Events that went with the oldest part of a partition, for their age or because the partition was full, as the ledgers saw it.",
	}, sum(func(l *ledger.Ledger) float64 { return float64(l.Passed) })))
	registerLog(registerer, actingFor)
	registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rejoin_janitor_lag_events",
		Help: "Entries that the ledgers have yet to follow the log by, as last seen.",
	}, func() float64 {
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
	}))
	registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rejoin_janitor_partitions_held",
		Help: "Partitions that this janitor acts for.",
	}, func() float64 { return float64(len(actingFor())) }))
	registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rejoin_janitor_partitions",
		Help: "Partitions of the log.",
	}, func() float64 { return float64(len(partitions)) }))
	return m
}

// registerLog registers what the log takes of what it may.
func registerLog(registerer prometheus.Registerer, actingFor func() []*follow.Partition) {
	gauge := func(name, help string, add func(total float64, s eventlog.State) float64) {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rejoin_janitor_log_" + name, Help: help}, func() float64 {
			total := 0.0
			for _, p := range actingFor() {
				state, _ := p.Log.State(p.Number)
				total = add(total, state)
			}
			return total
		}))
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
}

// maxBytes is what a partition may take.
func maxBytes(s eventlog.State) float64 {
	if s.Limits.MaxBytes <= 0 {
		return math.Inf(1)
	}
	return float64(s.Limits.MaxBytes)
}
