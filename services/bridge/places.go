package bridge

import "github.com/prometheus/client_golang/prometheus"

// places bounds how many there are at once of what a gauge counts. It is safe for
// concurrent use.
type places struct {
	taken chan struct{}
	count prometheus.Gauge
}

func newPlaces(n int, count prometheus.Gauge) places {
	return places{taken: make(chan struct{}, n), count: count}
}

// enter takes a place, if there is one; leave gives it back.
func (p places) enter() bool {
	select {
	case p.taken <- struct{}{}:
		p.count.Inc()
		return true
	default:
		return false
	}
}

func (p places) leave() {
	<-p.taken
	p.count.Dec()
}
