package measure

import "math/bits"

// Histogram counts durations in buckets that are at most 1/32 wide: exact below
// 64 ns, and for each power of two above 32 buckets. It allocates nothing.
type Histogram struct {
	counts [64 * 32]int64
	Total  int64
}

func bucketOf(ns int64) int {
	if ns < 0 {
		ns = 0
	}
	v := uint64(ns)
	if v < 64 {
		return int(v)
	}
	e := bits.Len64(v) - 6  // v>>e lies in [32, 64)
	return 32*e + int(v>>e) //nolint:gosec // less than 64·32
}

// upper returns the end of a bucket.
func upper(bucket int) float64 {
	if bucket < 64 {
		return float64(bucket)
	}
	e := bucket/32 - 1
	return float64(uint64(bucket-32*e+1) << e) //nolint:gosec // at most 63
}

// Add adds a duration in nanoseconds.
func (h *Histogram) Add(ns int64) {
	h.counts[bucketOf(ns)]++
	h.Total++
}

// Merge adds all durations of another histogram.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range &o.counts {
		h.counts[i] += n
	}
	h.Total += o.Total
}

// quantile returns a quantile in milliseconds.
func (h *Histogram) quantile(q float64) float64 {
	rank := int64(q * float64(h.Total))
	for i, n := range &h.counts {
		if rank -= n; rank < 0 {
			return upper(i) / 1e6
		}
	}
	return 0
}
