// Package delivery sends streams to clients. A [Connection] has a reader's cursor and a socket; one
// of a few workers moves its cursor and writes the events after it, without ever waiting for the socket
// or for the log: a goroutine does that, and gives the connection back. A [Format] makes the bytes.
//
//	request ─▶ Connection.Hand ─▶ worker ──────────────────┬─▶ writev
//	window ─ a chain has changed ─▶ worker's queue ────────┘
//	worker ─▶ goroutine: first read, read of the log, or flush of a full socket ─▶ worker
package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/inspect"
	"rejoin/shared/logrepeat"
)

// New returns the connections of an edge: none, until Run and the first client.
func New(cfg Config) *Connections {
	s := &Connections{
		cfg: cfg, drain: make(chan struct{}), History: newHistory(),
		Metrics: NewMetrics(cfg.Metrics, cfg.MaxConnections),
		waits:   logrepeat.New(cfg.Logger),
	}
	for range runtime.GOMAXPROCS(0) {
		s.workers = append(s.workers, newWorker(s))
	}
	return s
}

// Run runs the workers until stop is closed.
func (s *Connections) Run(stop <-chan struct{}) {
	var workers sync.WaitGroup
	for _, w := range s.workers {
		workers.Go(func() { w.run(stop) })
	}
	workers.Wait()
}

// BeginDrain has each connection end at a moment of its own within the time of a drain.
func (s *Connections) BeginDrain() { close(s.drain) }

// Draining is closed when the edge begins to stop.
func (s *Connections) Draining() <-chan struct{} { return s.drain }

// Waits logs that a client's stream waits for the log, once a minute for each error: during an outage
// all streams wait, and try again twice a second.
func (s *Connections) Waits(ctx context.Context, message string, at window.Place, err error) {
	why := err.Error()
	s.waits.Note(ctx, message+": "+why, message, slog.String("session", at.Session), slog.String("stream", at.Stream), slog.String("error", why))
}

// Of returns the newest connections of a session, up to a limit, and how many there are.
func (s *Connections) Of(ctx context.Context, session string, limit int) (newest []inspect.Connection, total int) {
	answers := make(chan found, len(s.workers))
	for _, w := range s.workers {
		w.post(func() { answers <- w.find(session, limit) })
	}
	for range s.workers {
		select {
		case f := <-answers:
			newest, total = append(newest, f.newest...), total+f.total
		case <-ctx.Done():
			return nil, 0
		}
	}
	slices.SortFunc(newest, func(a, b inspect.Connection) int { return cmp.Compare(b.Number, a.Number) })
	return newest[:min(limit, len(newest))], total
}
