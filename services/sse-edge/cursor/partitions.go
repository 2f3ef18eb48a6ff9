// Package cursor reads streams of the log for clients. A [Reader] has a cursor, and returns what
// follows it in steps: from the window, or from the log where the cursor lies below it. Each
// step is complete, or says with a [Gap] what is missing. A [Partition] follows its part of the
// log and fills the window.
package cursor

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
)

// Config configures the partitions of an edge.
type Config struct {
	// Base ends reads of the log that several readers share.
	Base    context.Context //nolint:containedctx // of the edge
	Log     *eventlog.Log
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Traced says that there are traces.
	Traced bool
	// WindowBytes bounds the memory of all windows together.
	WindowBytes int
	// Backfill is how many bytes of the newest events the windows read when they begin;
	// 0 means as much as fits, -1 none.
	Backfill int
	// LogReads is how many reads below the windows may run at a time.
	LogReads int
	// Patience is how long a reader waits for the janitor to check a partition for damage.
	Patience time.Duration
}

// Partitions are all partitions of the log, each with its window.
type Partitions struct {
	log *eventlog.Log
	all []*Partition
}

// New returns the partitions of a log. They are empty until Run.
func New(cfg Config) *Partitions {
	n := cfg.Log.Settings().Partitions
	ps := &Partitions{log: cfg.Log, all: make([]*Partition, n)}
	m := newMetrics(cfg.Metrics, func() []*Partition { return ps.all })
	skip := func(reason string) { m.skipped.WithLabelValues(reason).Inc() }
	backfill := cfg.WindowBytes / n * 8 / 10
	switch {
	case cfg.Backfill > 0:
		backfill = min(backfill, cfg.Backfill/n)
	case cfg.Backfill < 0:
		backfill = 0
	}
	reads := make(chan struct{}, cfg.LogReads)
	turns := make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))
	for number := range ps.all {
		w := window.New(max(cfg.WindowBytes/n, 1), skip)
		ps.all[number] = &Partition{
			number: number, log: cfg.Log, logger: cfg.Logger, metrics: m, traced: cfg.Traced, window: w,
			looks:    looks{base: cfg.Base, log: cfg.Log, number: number, window: w},
			patience: patience{limit: cfg.Patience},
			backlog: backlog{
				base: cfg.Base, log: cfg.Log, number: number, slots: reads, metrics: m,
				budget: max(cfg.WindowBytes/64, minScanBudget),
			},
			jumped: make(chan struct{}, 1), backfill: backfill, turns: turns,
		}
	}
	return ps
}

// Of returns the partition of a session.
func (ps *Partitions) Of(session string) *Partition { return ps.all[ps.log.Partition(session)] }

// Ready returns an error while a partition has not caught up with the log since the start.
func (ps *Partitions) Ready() error {
	for _, p := range ps.all {
		if !p.window.Stats().Ready {
			return fmt.Errorf("partition %d has not caught up", p.number)
		}
	}
	return nil
}

// Run follows the log until the context is done.
func (ps *Partitions) Run(ctx context.Context) {
	var tails sync.WaitGroup
	for _, p := range ps.all {
		tails.Go(func() { _ = p.run(ctx) }) // its only error is the context's
		tails.Go(func() { p.watch(ctx) })
		tails.Go(func() { p.lookAfterJumps(ctx) })
	}
	tails.Wait()
}

// Wait returns when no read is in progress, after the base context is done.
func (ps *Partitions) Wait() {
	for _, p := range ps.all {
		p.backlog.work.Wait()
		p.looks.work.Wait()
	}
}
