package natstest

import "go.uber.org/goleak"

// IgnoreLeaks returns the goroutines that a check for leaks has to ignore where servers are
// stopped: nats-server 2.15.2 that is stopped while it makes a stream leaks that stream's
// store (docs/upstream/0009).
func IgnoreLeaks() []goleak.Option {
	const server = "github.com/nats-io/nats-server/v2/server"
	return []goleak.Option{
		goleak.IgnoreTopFunction(server + ".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction(server + "/ats.Register.func1"),
	}
}
