package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"rejoin/shared/backend"
	"rejoin/shared/session"
)

// closeAttempts is how often a close that collided with another one is tried.
const closeAttempts = 5

// closeKey says what a close is about. Closes of one thing with and without a
// clear are two: the registry's compare-and-set orders them.
type closeKey struct {
	session, stream string
	clear           bool
}

// closing is a close under way.
type closing struct {
	done chan struct{} // closed at the end
	err  error         // set before done is closed
}

// closes are the closes under way. Each has a goroutine that goes on when whoever
// asked for it has gone, and that ends within the time-out. Safe for concurrent use.
type closes struct {
	cfg     Config
	backend *backend.Backend
	log     *slog.Logger
	metrics *metrics

	ctx    context.Context // of all closes
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	running  map[closeKey]*closing // at most cfg.MaxCloses; more are refused with errBusy
	stopping bool
}

func newCloses(cfg Config, b *backend.Backend, log *slog.Logger, m *metrics) *closes {
	ctx, cancel := context.WithCancel(context.Background())
	return &closes{cfg: cfg, backend: b, log: log, metrics: m, ctx: ctx, cancel: cancel, running: map[closeKey]*closing{}}
}

// start begins a close, or joins one of the same thing that is under way. Errors
// wrap [errBusy] or [errStopping].
func (c *closes) start(key closeKey) (*closing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running, ok := c.running[key]; ok {
		return running, nil
	}
	switch {
	case c.stopping:
		return nil, errStopping
	case len(c.running) >= c.cfg.MaxCloses:
		return nil, errBusy
	}
	started := &closing{done: make(chan struct{})}
	c.running[key] = started
	c.wg.Go(func() { c.run(key, started) })
	return started, nil
}

func (c *closes) run(key closeKey, this *closing) {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.closeTimeout())
	defer cancel()
	err := c.close(ctx, key)
	result := resultClosed
	switch {
	case errors.Is(err, session.ErrNotFound):
		result = resultNotFound
	case err != nil:
		result = resultFailed
		this.err = fmt.Errorf("%w: %w", errCloseFailed, err)
		c.log.Warn("a close is not finished", "session", key.session, "stream", key.stream, "error", err)
	default:
		c.log.Debug("closed", "session", key.session, "stream", key.stream, "clear", key.clear)
	}
	if result == resultNotFound {
		this.err = err
	}
	c.metrics.closes.WithLabelValues(result).Inc()
	c.mu.Lock()
	delete(c.running, key)
	c.mu.Unlock()
	close(this.done)
}

func (c *closes) close(ctx context.Context, key closeKey) (err error) {
	for range closeAttempts {
		err = session.Close(ctx, c.backend.Sessions, c.backend.Log, key.session, key.stream, key.clear, c.cfg.settle())
		if !errors.Is(err, session.ErrConflict) {
			return err
		}
	}
	return err
}

// stop refuses new closes and waits for those under way; after grace it gives
// them up. A close that was given up is finished by whoever repeats it.
func (c *closes) stop(grace time.Duration) {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	defer time.AfterFunc(grace, c.cancel).Stop()
	c.wg.Wait()
	c.cancel()
}
