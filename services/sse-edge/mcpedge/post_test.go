package mcpedge

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics_ResultsStartAtZero(t *testing.T) {
	if n := testutil.CollectAndCount(newMetrics(prometheus.NewRegistry()).posts); n != 6 {
		t.Errorf("%d series", n)
	}
}
