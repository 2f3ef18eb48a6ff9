package mcpserver

import (
	"context"
	"net/http"
	"slices"
	"time"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/translate"
	"rejoin/services/bridge/upstream"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
)

// Listen keeps a subscription for the notifications that a client of earlier revisions receives without
// asking, and for the resources that it has subscribed to.
func (u *emulatedSession) Listen(ctx context.Context, c *call.Call, client func() http.Header) {
	var last *listening
	var began time.Time // of last
	for pause := listenPause; ctx.Err() == nil; {
		u.mu.Lock()
		f, changed := u.discovered.All(), u.changed
		f.URIs = u.uris
		u.mu.Unlock()
		var next *listening
		var ended chan struct{}
		if !f.Empty() {
			began = time.Now()
			next = u.subscription(ctx, c, client(), f, last)
			ended = next.ended
		}
		last.end() // the new one has been acknowledged, or will be tried again
		last = next
		select {
		case <-ctx.Done():
		case <-changed:
			pause = listenPause
		case <-ended:
			pause = pauseAfter(pause, time.Since(began))
			u.host.Pause(ctx, pause)
			pause = min(2*pause, listenPauseMax)
		}
	}
	last.end()
}

// listening is a subscription at the server.
type listening struct {
	uris   []string // of the resources
	cancel context.CancelFunc
	ending <-chan struct{} // closed when it is to end, or has
	acked  chan struct{}   // closed when it has been acknowledged
	ended  chan struct{}   // closed when it is over
}

func (l *listening) end() {
	if l != nil {
		l.cancel()
		<-l.ended
	}
}

// missed returns the changes that may have been missed when a subscription to f follows l. A client relies on
// notifications of a resource from the answer to its request on, which is before the server has the subscription.
func (l *listening) missed(f translate.Filter) translate.Filter {
	if l == nil {
		return translate.Filter{URIs: f.URIs}
	}
	select {
	case <-l.ending:
		return f
	default:
	}
	select {
	case <-l.acked:
	default:
		return f
	}
	heard := map[string]bool{}
	for _, uri := range l.uris {
		heard[uri] = true
	}
	return translate.Filter{URIs: slices.DeleteFunc(slices.Clone(f.URIs), func(uri string) bool { return heard[uri] })}
}

// subscription begins to listen, and returns when the server has acknowledged that, or has ended it, or has
// done neither for --open-timeout: then the subscription may receive changes all the same.
// With the acknowledgement the client receives one of each kind of change that it may have missed before.
func (u *emulatedSession) subscription(ctx context.Context, c *call.Call, client http.Header, f translate.Filter, last *listening) *listening {
	ctx, cancel := context.WithCancel(ctx)
	l := &listening{f.URIs, cancel, ctx.Done(), make(chan struct{}), make(chan struct{})}
	missed := last.missed
	if u.missed {
		missed = func(f translate.Filter) translate.Filter { return f }
	}
	u.missed = false
	if !c.Scope.Go(func() {
		defer close(l.ended)
		defer cancel()
		u.read(ctx, c, client, f, missed, l)
	}) {
		close(l.ended)
	}
	select {
	case <-l.acked:
	case <-l.ended:
	case <-u.host.Times.After(u.host.Config.OpenTimeout):
	}
	return l
}

// read stores the notifications of a subscription. missed is called when l is acknowledged.
func (u *emulatedSession) read(ctx context.Context, c *call.Call, client http.Header, f translate.Filter, missed func(translate.Filter) translate.Filter, l *listening) {
	header := u.repeat(client, rpc.Message{Method: new(mcp.MethodListen)})
	resp, refused := u.post(ctx, header, u.client.Listen("rejoin-listen", f))
	if refused != nil {
		return
	}
	defer func() { _ = resp.Body.Close() }()
	b := upstream.NewBody(resp.Header, resp.Body, u.host.MaxBytes())
	if b == nil {
		return
	}
	for acked := false; ; {
		in, err := b.Next()
		if err != nil {
			return
		}
		for _, data := range in.Messages {
			m, err := rpc.ParseMessage(data)
			switch {
			case err != nil, m.IsResponse():
				return
			case m.Is(translate.MethodAcknowledged):
				if acked {
					continue
				}
				acked = true
				changes := missed(f).Changes() // before the subscription ends that this one replaces
				close(l.acked)
				for _, change := range changes {
					if u.store(c, change) != nil {
						return
					}
				}
			case m.Method != nil && !m.IsRequest():
				if u.store(c, translate.EarlierNotification(m)) != nil {
					return
				}
			}
		}
	}
}

// store stores a notification on the standalone stream. Two subscriptions may do so at once.
func (u *emulatedSession) store(c *call.Call, data []byte) error {
	u.storing.Lock()
	defer u.storing.Unlock()
	return c.Take(call.Item{Data: data})
}
