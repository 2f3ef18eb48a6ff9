package janitor

import (
	"context"

	"github.com/nats-io/nats.go"
)

// whileConnected returns a context that ends with ctx or when the connection to
// NATS is lost: an answer that is under way then never comes. The function that
// it returns must be called; it waits for the goroutine that watches.
func whileConnected(ctx context.Context, nc *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	lost := nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-watched
		nc.RemoveStatusListener(lost)
	}
}
