package janitor

import (
	"context"
	"errors"
	"sync/atomic"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
)

// ProgramConfig holds the flags of the program that runs nothing but the janitor.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config `embed:""`
	Log     LogFlags       `embed:""`
	Janitor Config         `embed:""`
}

// Run creates what is missing of the log and the registry, then runs the service
// until ctx ends. The admin port is open from the beginning; the program is ready
// when the log is there and the ledger complete.
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	if err := errors.Join(cfg.Janitor.Validate(), cfg.Log.Validate()); err != nil {
		return err
	}
	var opened atomic.Bool
	env.Health.Add("log", func() error {
		if !opened.Load() {
			return errors.New("the log is not there yet")
		}
		return nil
	})
	return daemon.Run(ctx, cfg.Config, env, daemon.Actor{Name: "janitor", Run: func(ctx context.Context) error {
		b, err := backend.Create(ctx, cfg.Backend, "janitor", cfg.Log.Settings(), env.Log)
		if err != nil {
			if ctx.Err() != nil {
				return nil // told to stop while NATS was away
			}
			return err
		}
		defer b.Close()
		cfg.Log.WarnOfDifferences(b.Log.Settings(), env.Log)
		s, err := New(cfg.Janitor, b, env)
		if err != nil {
			return err
		}
		opened.Store(true)
		return s.Run(ctx)
	}})
}
