package host

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

// Each action that an edge asks for is counted as itself.
func TestMetrics_Answered(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	for _, action := range []rpc.Action{rpc.Open, rpc.Request, rpc.Cancel, rpc.Post, rpc.End, rpc.Check} {
		m.Answered(action, 200)
	}
	m.Answered("rubbish", 400)
	all := must.Value(registry.Gather())(t)
	series := 0
	for _, family := range all {
		if family.GetName() != "rejoin_bridge_answers_total" {
			continue
		}
		series = len(family.GetMetric())
		for _, is := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range is.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			want := 0.0
			if (labels["action"] == "invalid") == (labels["status"] == "4xx") && labels["status"] != "5xx" {
				want = 1
			}
			if got := is.GetCounter().GetValue(); got != want {
				t.Errorf("%v: %v", labels, got)
			}
		}
	}
	if series != 21 {
		t.Errorf("%d series", series)
	}
}
