package eventlog

import (
	"context"

	"github.com/nats-io/nats.go"
)

// life is one life of the connection: its context ends when the connection is lost.
type life struct {
	ctx context.Context
	end context.CancelFunc
}

func newLife() *life {
	ctx, cancel := context.WithCancel(context.Background())
	return &life{ctx: ctx, end: cancel}
}

// live keeps l.life until ctx ends.
func (l *Log) live(ctx context.Context) {
	changed := l.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer l.nc.RemoveStatusListener(changed)
	// The connection may have been lost after the log was opened and before this goroutine
	// ran. Nothing announces that any more, and the life would last until the next loss.
	if !l.nc.IsConnected() {
		l.life.Load().end()
	}
	for {
		select {
		case <-ctx.Done():
			l.life.Load().end()
			return
		case status := <-changed:
			l.life.Load().end()
			if status == nats.CONNECTED {
				l.life.Store(newLife())
			}
		}
	}
}

// request returns the context of a request that can be repeated. It ends when the
// connection is lost: what was under way then is never answered, and would be
// waited for until its time-out, long after the connection has come back.
func (l *Log) request(ctx context.Context) (context.Context, context.CancelFunc) {
	now := l.life.Load()
	if now == nil || now.ctx.Err() != nil {
		// There is no connection, and the client says so at once; or there is one again,
		// of which the log has yet to hear, and its loss would not be noticed.
		return context.WithTimeout(ctx, lookWithin)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(now.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
