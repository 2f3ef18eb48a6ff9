package backend

import (
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/metric"
)

// register registers the metrics of the connection of a service: rejoin_<service>_nats_connected and
// rejoin_<service>_nats_reconnects_total. The edge is called sse-edge in NATS's monitoring.
func register(nc *nats.Conn, name string, registerer prometheus.Registerer) {
	service := strings.TrimPrefix(name, "sse-")
	metric.GaugeFunc(registerer, "rejoin_"+service+"_nats_connected", "1 while the service is connected to NATS, else 0.", func() float64 {
		if nc.IsConnected() {
			return 1
		}
		return 0
	})
	reconnects := metric.Counter(registerer, "rejoin_"+service+"_nats_reconnects_total", "Times that the service has found NATS again after it had lost it.")
	handle := nc.ReconnectHandler()
	nc.SetReconnectHandler(func(nc *nats.Conn) {
		reconnects.Inc() // nc.Stats counts attempts that the server refuses, and a first connection that took several
		handle(nc)
	})
}
