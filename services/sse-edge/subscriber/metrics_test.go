package subscriber

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/delivery"
)

// A series that appears with its first event hides that event from every rate.
func TestMetrics_ReasonsStartAtZero(t *testing.T) {
	m, streams := newMetrics(prometheus.NewRegistry()), delivery.NewMetrics(prometheus.NewRegistry(), 1)
	for _, c := range []struct {
		of   string
		vec  *prometheus.CounterVec
		want int
	}{
		{"closed", streams.Closed, 9}, {"refused", streams.Refused, 7}, {"resumes", m.resumes, 2}, {"gaps", streams.Gaps, 6},
	} {
		if n := testutil.CollectAndCount(c.vec); n != c.want {
			t.Errorf("%s: %d series, want %d", c.of, n, c.want)
		}
	}
}
