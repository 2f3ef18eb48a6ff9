package edge

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A series that appears with its first event hides that event from every rate.
func TestEveryReasonIsCountedFromTheStart(t *testing.T) {
	m, streams := newMetrics(prometheus.NewRegistry()), newStreamMetrics(prometheus.NewRegistry(), 1)
	for _, c := range []struct {
		of   string
		vec  *prometheus.CounterVec
		want int
	}{
		{"closed", streams.closed, 8}, {"refused", streams.refused, 7}, {"resumes", m.resumes, 2}, {"gaps", streams.gaps, 6}, {"posts", m.posts, 6},
	} {
		if n := testutil.CollectAndCount(c.vec); n != c.want {
			t.Errorf("%s: %d series, want %d", c.of, n, c.want)
		}
	}
}
