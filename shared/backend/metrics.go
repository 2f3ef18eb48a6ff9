package backend

import (
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/metric"
)

// Register registers the metrics of the connection of a service:
// rejoin_<service>_nats_connected and rejoin_<service>_nats_reconnects_total.
func (b *Backend) Register(service string, registerer prometheus.Registerer) {
	metric.GaugeFunc(registerer, "rejoin_"+service+"_nats_connected", "1 while the service is connected to NATS, else 0.", func() float64 {
		if b.Conn.IsConnected() {
			return 1
		}
		return 0
	})
	metric.CounterFunc(registerer, "rejoin_"+service+"_nats_reconnects_total", "Times that the service has found NATS again after it had lost it.",
		func() float64 { return float64(b.Conn.Stats().Reconnects) })
}
