package measure

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Bar is the limit of a metric.
type Bar struct {
	Cases  []string
	metric string
	least  bool // the limit is the least that will do; else the most
	limit  float64
}

// Bars are those of the whole of Rejoin, with JetStream behind it.
func Bars() []Bar {
	fan, large := []string{"fanout-100", "fanout-1000", "fanout-5000"}, []string{"fanout-1000", "fanout-5000"}
	return []Bar{
		{large, "free_vs_nchan", true, 6},
		{large, "free_vs_rawbatch", true, 0.5},
		{large, "ahead16_vs_nchan", true, 3},
		{large, "ahead16_vs_rawbatch", true, 0.5},
		{fan, "paced_p99_vs_raw", false, 1.4},
		{fan, "paced_cpu_vs_raw", false, 1.4},
		{[]string{"many"}, "cpu_vs_raw", false, 2.5},
		{[]string{"many"}, "p99_vs_raw", false, 10},
		{[]string{"idle-9000", "idle-18000"}, "kb_each", false, 9},
		{[]string{"storm-window"}, "vs_raw", false, 1.5},
		{[]string{"storm-log"}, "vs_drain", false, 3},
		{[]string{"cold"}, "vs_drain", false, 1.5},
		{[]string{"publish"}, "vs_bare", true, 0.25},
		{[]string{"publish"}, "ndjson_vs_direct", true, 0.6},
		{[]string{"publish"}, "ndjson_resident_mb", false, 256},
		{[]string{"removal"}, "p99_vs_before", false, 3},
		{[]string{"removal"}, "seconds", false, 120},
		{[]string{"limits"}, "longest_above_s", false, 5},
		{[]string{"ledger"}, "vs_drain", false, 1.5},
		{[]string{"ledger"}, "heap_vs_bound", false, 1},
		{[]string{"mcp-calls"}, "added_p50_ms", false, 3},
		{[]string{"mcp-calls"}, "calls_vs_alone", true, 0.4},
		{[]string{"mcp-modern"}, "added_p50_ms", false, 1.5},
		{[]string{"mcp-modern"}, "earlier_added_p50_ms", false, 1.5},
		{[]string{"mcp-sessions"}, "sessions", true, 1000},
		{[]string{"mcp-sessions"}, "lost", false, 0},
		{[]string{"mcp-sessions"}, "twice", false, 0},
		{[]string{"mcp-sessions"}, "run_again", false, 0},
		{[]string{"scale-log"}, "start_10_vs_1", false, 1.2},
		{[]string{"scale-log"}, "resume_10_vs_1", false, 1.2},
		{[]string{"scale-edges"}, "cpu_vs_one", false, 1.3},
		{[]string{"scale-edges"}, "busiest_vs_mean", false, 1.5},
		{[]string{"scale-edges"}, "windows_vs_one", false, 2},
		{[]string{"scale-edges"}, "cold_p99_ms", false, 50},
		{[]string{"scale-edges"}, "moved_vs_stayed", false, 2},
		{[]string{"scale-janitors"}, "resident_vs_alone", false, 0.6},
		{[]string{"scale-janitors"}, "takeover_vs_bound", false, 1},
		{[]string{"slow"}, "p99_vs_without", false, 1.5},
		{[]string{"slow"}, "kb_each_stalled", false, 16},
	}
}

// Verdict is the median of a case, compared with a bar.
type Verdict struct {
	c     string
	bar   Bar
	value float64 // the median
	known bool    // it was measured
}

func (v Verdict) holds() bool {
	if v.bar.least {
		return v.known && v.value >= v.bar.limit
	}
	return v.known && v.value <= v.bar.limit
}

// judge holds a case's medians against the bars.
func (r *report) judge() []Verdict {
	var all []Verdict
	for _, b := range Bars() {
		if slices.Contains(b.Cases, r.name) {
			v, ok := r.median(b.metric)
			all = append(all, Verdict{r.name, b, v, ok})
		}
	}
	return all
}

// PrintVerdicts prints which bars hold.
func PrintVerdicts(w io.Writer, all []Verdict) {
	if len(all) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nbars")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "case\tmetric\tmedian\tbar\tholds")
	for _, v := range all {
		sign, value, holds := "≤", fmt.Sprintf("%.3f", v.value), "no"
		if v.bar.least {
			sign = "≥"
		}
		if v.holds() {
			holds = "yes"
		}
		if !v.known {
			value, holds = "-", "not measured"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s %g\t%s\n", v.c, v.bar.metric, value, sign, v.bar.limit, holds)
	}
	_ = table.Flush()
}
