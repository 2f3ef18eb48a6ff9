// Package metrictest reads metrics in tests.
package metrictest

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"rejoin/shared/must"
)

// Value returns the sum of a metric over the series whose label values hold all of labels. Of a
// histogram it is the number of observations. An empty label asks for nothing. The test fails when
// there is no such series.
func Value(t testing.TB, from prometheus.Gatherer, name string, labels ...string) (sum float64) {
	t.Helper()
	families := must.Value(from.Gather())(t)
	found := false
	for _, f := range families {
		for _, m := range f.GetMetric() {
			lacks := func(label string) bool {
				return label != "" && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label })
			}
			if f.GetName() == name && !slices.ContainsFunc(labels, lacks) {
				found = true
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	if !found {
		t.Fatalf("there is no metric %s%v", name, labels)
	}
	return sum
}
