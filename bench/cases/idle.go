package cases

import (
	"context"
	"fmt"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// idle measures the resident memory of a connection on which nothing happens.
func idle(clients int) func(context.Context, *system.Programs) (measure.Figures, error) {
	return func(ctx context.Context, p *system.Programs) (measure.Figures, error) {
		var f measure.Figures
		for _, c := range p.Contenders(system.OfRejoin, system.OfRaw, system.OfNchan) {
			kb, err := idleOf(ctx, c, p, clients)
			if err != nil {
				return f, fmt.Errorf("%s%d connections: %w", c.Prefix, clients, err)
			}
			f.Add(c.Prefix+"kb_each", kb)
		}
		return f, nil
	}
}

func idleOf(ctx context.Context, c system.Contender, p *system.Programs, clients int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s, err := c.Start(ctx, p)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	before, err := measure.Resident(s.PIDs())
	if err != nil {
		return 0, err
	}
	l, err := load.New(ctx, load.Crowd{Clients: clients, Target: s.Target(), Stream: func(i int) int { return i }})
	if err != nil {
		return 0, err
	}
	defer l.Close()
	// The garbage of the handshakes counts: a few collections free it, which an idle
	// program does by itself every two minutes.
	if err := measure.Pause(ctx, 5*time.Second); err != nil {
		return 0, err
	}
	after, err := measure.Resident(s.PIDs())
	return float64(after-before) / 1024 / float64(clients), err
}
