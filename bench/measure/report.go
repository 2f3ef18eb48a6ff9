// Package measure takes figures, repeats a case, prints its figures as tables and lines, and
// compares them with bars. It knows the processes that it measures by their ids only.
package measure

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Figures are the values that one run of a case measured, by metric, in the order they were added.
type Figures struct {
	names   []string
	values  map[string]float64
	remarks []string
}

// Add adds the value of a metric.
func (f *Figures) Add(metric string, value float64) {
	if f.values == nil {
		f.values = map[string]float64{}
	}
	f.names = append(f.names, metric)
	f.values[metric] = value
}

// Value returns a metric that was added, or 0.
func (f *Figures) Value(metric string) float64 { return f.values[metric] }

// Ratio adds one metric divided by another, if both were measured.
func (f *Figures) Ratio(metric, of, to string) {
	a, ok := f.values[of]
	b, ok2 := f.values[to]
	if ok && ok2 && b > 0 {
		f.Add(metric, a/b)
	}
}

// Remark is printed under the table.
func (f *Figures) Remark(format string, v ...any) {
	f.remarks = append(f.remarks, fmt.Sprintf(format, v...))
}

// AddLatencies adds quantiles in milliseconds under a prefix.
func (f *Figures) AddLatencies(prefix string, all []time.Duration) {
	slices.Sort(all)
	for _, q := range quantiles {
		f.Add(prefix+q.name, float64(all[int(q.at*float64(len(all)-1))].Microseconds())/1000)
	}
}

// AddHistogram does the same with a histogram.
func (f *Figures) AddHistogram(prefix string, h *Histogram) {
	for _, q := range quantiles {
		f.Add(prefix+q.name, h.quantile(q.at))
	}
}

var quantiles = []struct {
	name string
	at   float64
}{{"p50_ms", 0.50}, {"p99_ms", 0.99}, {"p999_ms", 0.999}}

// report collects the repetitions of a case.
type report struct {
	name    string // of the case
	what    string // it measures
	names   []string
	all     map[string][]float64
	remarks []string
}

func newReport(name, what string) *report {
	return &report{name: name, what: what, all: map[string][]float64{}}
}

func (r *report) add(f Figures) {
	for _, name := range f.names {
		if len(r.all[name]) == 0 {
			r.names = append(r.names, name)
		}
		r.all[name] = append(r.all[name], f.values[name])
	}
	r.remarks = append(r.remarks, f.remarks...)
}

// median returns the upper median of a metric.
func (r *report) median(metric string) (float64, bool) {
	v := slices.Sorted(slices.Values(r.all[metric]))
	if len(v) == 0 {
		return 0, false
	}
	return v[len(v)/2], true
}

func (r *report) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\n%s: %s\n", r.name, r.what)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "metric\tmedian\tleast\tmost\t")
	for _, name := range r.names {
		m, _ := r.median(name)
		_, _ = fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\t\n", name, m, slices.Min(r.all[name]), slices.Max(r.all[name]))
	}
	_ = table.Flush()
	for _, remark := range r.remarks {
		_, _ = fmt.Fprintln(w, remark)
	}
	for _, name := range r.names {
		m, _ := r.median(name)
		_, _ = fmt.Fprintf(w, "BENCH %s %s %.3f\n", r.name, name, m)
	}
}
