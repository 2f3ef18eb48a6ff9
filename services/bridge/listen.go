package bridge

import (
	"context"
	"errors"
	"net/http"
	"time"

	"rejoin/services/bridge/upstream"
	"rejoin/shared/rpc"
)

// The pauses before the standalone stream is asked for again.
const (
	listenPause    = time.Second
	listenPauseMax = 30 * time.Second
	// pollPause is the shortest, whatever the upstream asks for with "retry"; after streams
	// that end at once without a message it grows to pollPauseMax.
	pollPause    = 500 * time.Millisecond
	pollPauseMax = 5 * time.Second
)

// listen keeps the upstream's standalone stream open, and stores what comes, until ctx
// ends or there is none.
func (r *remote) listen(ctx context.Context, c *call, client func() http.Header) {
	ctx, p := newIdleTimer(ctx, 0)
	defer p.over()
	pause := listenPause
	for {
		resp, err := r.get(ctx, client(), c.cursor().ID)
		c.wasTried()
		next := pause
		switch {
		case errors.Is(err, upstream.ErrGone):
			c.session.finish(upstream.ErrGone)
			return
		case errors.Is(err, upstream.ErrNoStream):
			return
		case err == nil:
			b := upstream.NewBody(resp.Header, resp.Body, r.service.maxBytes())
			began := time.Now()
			var came bool
			came, err = r.read(p, c, b)
			_ = resp.Body.Close()
			if errors.Is(err, errClosed) {
				return
			}
			if errors.Is(err, upstream.ErrTooLarge) {
				// It would come again. What is between it and now is lost with it.
				c.drop(dropTooLarge, err)
				c.restart()
			}
			if time.Since(began) > listenPauseMax {
				pause = listenPause
			}
			next = pause
			if b.Retry() > 0 {
				if came || time.Since(began) > pollPause {
					pause = pollPause
				}
				next = max(min(pause, pollPauseMax), b.Retry())
			}
		}
		if ctx.Err() != nil {
			return
		}
		r.service.log.Debug("the MCP server's standalone stream is asked for again", "session", c.session.name, "stream", c.stream, "in", next.String(), "error", err)
		select {
		case <-ctx.Done():
			return
		case <-r.service.after(next):
		}
		pause = min(2*pause, listenPauseMax)
	}
}

// newStandalone returns what stores a session's standalone stream.
func newStandalone(h *clientSession) *call {
	c := newCall(h, rpc.Standalone, nil)
	c.tried = make(chan struct{})
	if u, ok := h.up.(*stateless); ok {
		c.to = u.translation()
	}
	return c
}

// wasTried notes that the upstream has answered a request for its standalone stream, or will not.
func (c *call) wasTried() { c.triedOnce.Do(func() { close(c.tried) }) }
