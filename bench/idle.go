package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// idle measures the resident memory of a connection on which nothing happens.
func idle(clients int) func(context.Context, string) (figures, error) {
	return func(ctx context.Context, program string) (figures, error) {
		var f figures
		for _, c := range contenders()[:2] {
			kb, err := idleOf(ctx, c, program, clients)
			if err != nil {
				return f, fmt.Errorf("%s: %w", c.name, err)
			}
			f.add(c.name+"kb_each", kb)
		}
		return f, nil
	}
}

func idleOf(ctx context.Context, c contender, program string, clients int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s, err := c.start(ctx, program)
	if err != nil {
		return 0, err
	}
	defer s.close()
	before, err := resident(s.pids())
	if err != nil {
		return 0, err
	}
	l, err := newLoad(ctx, clients, target{addr: first(s.target(0)), path: func(i int) (string, int) {
		_, path := s.target(i)
		return path, 0
	}})
	if err != nil {
		return 0, err
	}
	defer l.close()
	// What the handshakes left behind goes with a few collections, which an idle
	// program does by itself every two minutes; wait until it no longer shrinks much.
	runtime.GC()
	time.Sleep(5 * time.Second)
	after, err := resident(s.pids())
	return float64(after-before) / 1024 / float64(clients), err
}

func first(a, _ string) string { return a }
