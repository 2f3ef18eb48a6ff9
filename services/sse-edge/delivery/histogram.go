package delivery

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// deliveryBounds are the upper bounds of the buckets of rejoin_edge_delivery_seconds.
var deliveryBounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	5 * time.Second, 10 * time.Second,
}

// lookEvery is for how many writes the clock is looked at once. A look costs 60 ns, a write
// 4 µs; so the time of a write is known to less than a tenth of a millisecond.
const lookEvery = 16

// times are observations that have yet to be added to the histogram. A worker has its
// own, so that an observation takes no lock and touches no memory of another processor.
type times struct {
	counts [len(deliveryBounds) + 1]uint64
	n      uint64
	sum    time.Duration
	now    int64 // when the clock was looked at
}

// delivered counts a write of an event that was stored at a time, in nanoseconds since
// 1970.
func (t *times) delivered(stored int64) {
	if t.n%lookEvery == 0 {
		t.now = time.Now().UnixNano()
	}
	t.observe(time.Duration(t.now - stored))
}

// observe counts a time. One below zero, when the NATS server's clock is ahead, counts
// as none.
func (t *times) observe(d time.Duration) {
	d = max(d, 0)
	bucket := 0
	for bucket < len(deliveryBounds) && d > deliveryBounds[bucket] {
		bucket++
	}
	t.counts[bucket]++
	t.n++
	t.sum += d
}

// delivery is the histogram rejoin_edge_delivery_seconds. It is safe for concurrent use.
//
// Only a stream that had everything of the window at its last look is timed. Workers count
// without locks and add up once in a round.
type delivery struct {
	desc *prometheus.Desc

	mu  sync.Mutex
	all times
}

func newDelivery() *delivery {
	return &delivery{desc: prometheus.NewDesc("rejoin_edge_delivery_seconds",
		"Time from an event's entry into the log, by the clock of the NATS server, until it was handed to a client's socket: the oldest event of each write to an event stream that was waiting for it. Replays, and clients that were behind, do not count.", nil, nil)}
}

// add takes over what a worker has observed.
func (d *delivery) add(t *times) {
	if t.n == 0 {
		return
	}
	d.mu.Lock()
	for i, n := range t.counts {
		d.all.counts[i] += n
	}
	d.all.n += t.n
	d.all.sum += t.sum
	d.mu.Unlock()
	*t = times{}
}

// Describe implements [prometheus.Collector].
func (d *delivery) Describe(ch chan<- *prometheus.Desc) { ch <- d.desc }

// Collect implements [prometheus.Collector].
func (d *delivery) Collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	all := d.all
	d.mu.Unlock()
	buckets, below := make(map[float64]uint64, len(deliveryBounds)), uint64(0)
	for i, bound := range deliveryBounds {
		below += all.counts[i]
		buckets[bound.Seconds()] = below
	}
	ch <- prometheus.MustNewConstHistogram(d.desc, all.n, all.sum.Seconds(), buckets)
}

// Count returns how many deliveries were observed.
func (d *delivery) Count() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all.n
}
