package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// figures are what one run of a case measured, by metric, in the order they were added.
type figures struct {
	names  []string
	values map[string]float64
}

func (f *figures) add(metric string, value float64) {
	if f.values == nil {
		f.values = map[string]float64{}
	}
	f.names = append(f.names, metric)
	f.values[metric] = value
}

// addLatencies adds quantiles in milliseconds under a prefix.
func (f *figures) addLatencies(prefix string, all []time.Duration) {
	slices.Sort(all)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50_ms", 0.50}, {"p99_ms", 0.99}, {"p999_ms", 0.999}} {
		f.add(prefix+q.name, float64(all[int(q.at*float64(len(all)-1))].Microseconds())/1000)
	}
}

// report collects the repetitions of a case.
type report struct {
	c     benchCase
	names []string
	all   map[string][]float64
}

func newReport(c benchCase) *report { return &report{c: c, all: map[string][]float64{}} }

func (r *report) add(f figures) {
	r.names = f.names
	for name, v := range f.values {
		r.all[name] = append(r.all[name], v)
	}
}

func (r *report) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\n%s: %s\n", r.c.name, r.c.what)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "metric\tmedian\tleast\tmost\t")
	for _, name := range r.names {
		v := slices.Sorted(slices.Values(r.all[name]))
		_, _ = fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\t\n", name, v[len(v)/2], v[0], v[len(v)-1])
	}
	_ = table.Flush()
	for _, name := range r.names {
		v := slices.Sorted(slices.Values(r.all[name]))
		_, _ = fmt.Fprintf(w, "BENCH %s %s %.3f\n", r.c.name, name, v[len(v)/2])
	}
}
