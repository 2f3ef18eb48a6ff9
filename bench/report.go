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
	names   []string
	values  map[string]float64
	remarks []string
}

func (f *figures) add(metric string, value float64) {
	if f.values == nil {
		f.values = map[string]float64{}
	}
	f.names = append(f.names, metric)
	f.values[metric] = value
}

// value returns a metric that was added, or 0.
func (f *figures) value(metric string) float64 { return f.values[metric] }

// ratio adds one metric divided by another, if both were measured.
func (f *figures) ratio(metric, of, to string) {
	a, ok := f.values[of]
	b, ok2 := f.values[to]
	if ok && ok2 && b > 0 {
		f.add(metric, a/b)
	}
}

// remark is printed under the table.
func (f *figures) remark(format string, v ...any) {
	f.remarks = append(f.remarks, fmt.Sprintf(format, v...))
}

// addLatencies adds quantiles in milliseconds under a prefix.
func (f *figures) addLatencies(prefix string, all []time.Duration) {
	slices.Sort(all)
	for _, q := range quantiles {
		f.add(prefix+q.name, float64(all[int(q.at*float64(len(all)-1))].Microseconds())/1000)
	}
}

// addHistogram does the same with a histogram.
func (f *figures) addHistogram(prefix string, h *histogram) {
	for _, q := range quantiles {
		f.add(prefix+q.name, h.quantile(q.at))
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

func (r *report) add(f figures) {
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

// measure runs a case several times, prints what it measured, and holds that against the bars. It
// ends with the first error.
func measure(w io.Writer, name, what string, times int, run func() (figures, error)) ([]verdict, error) {
	r := newReport(name, what)
	err := r.repeat(times, run)
	r.print(w)
	return r.judge(), err
}

func (r *report) repeat(times int, run func() (figures, error)) error {
	for range times {
		before, err := readMachineTime()
		if err != nil {
			return err
		}
		f, err := run()
		if err != nil {
			return err
		}
		after, err := readMachineTime()
		if err != nil {
			return err
		}
		f.remark("%s", after.others(before))
		r.add(f)
	}
	return nil
}
