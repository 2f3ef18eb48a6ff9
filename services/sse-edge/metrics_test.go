package edge

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// noMetrics are metrics that nobody reads.
func noMetrics() *metrics {
	return newMetrics(prometheus.NewRegistry(), 1)
}

// A series that appears with its first event hides that event from every rate.
func TestEveryReasonIsCountedFromTheStart(t *testing.T) {
	m := noMetrics()
	for _, c := range []struct {
		of   string
		vec  *prometheus.CounterVec
		want int
	}{
		{"closed", m.closed, 8}, {"refused", m.refused, 7}, {"resumes", m.resumes, 2}, {"gaps", m.gaps, 6}, {"posts", m.posts, 6},
	} {
		if n := testutil.CollectAndCount(c.vec); n != c.want {
			t.Errorf("%s: %d series, want %d", c.of, n, c.want)
		}
	}
}
