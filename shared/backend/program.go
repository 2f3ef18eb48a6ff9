package backend

import (
	"context"
	"errors"
	"sync/atomic"

	"rejoin/shared/daemon"
)

// Service is a service that a program runs on a backend.
type Service interface {
	// Run serves until ctx ends.
	Run(ctx context.Context) error
}

// Serve is the Run of a program with one service: it waits for the backend that
// open opens, makes the service on it, and runs it until ctx ends, or until the
// log is converted to another version, which is an error. When ctx ends while it
// waits, it returns nil. The admin port is open from the beginning, so that a
// program that waits is not taken for one that hangs; the program is ready when the
// service runs and all its checks pass.
func Serve[S Service](ctx context.Context, cfg daemon.Config, env daemon.Env, name string,
	open func(context.Context) (*Backend, error), start func(*Backend) (S, error),
) error {
	var opened atomic.Bool
	env.Health.Add("log", func() error {
		if !opened.Load() {
			return errors.New("the log is not open yet: NATS is unavailable, or no janitor has created the log")
		}
		return nil
	})
	return daemon.Run(ctx, cfg, env, daemon.Actor{Name: name, Run: func(ctx context.Context) error {
		b, err := open(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		defer b.Close()
		s, err := start(b)
		if err != nil {
			return err
		}
		opened.Store(true)
		ctx, end := context.WithCancelCause(ctx)
		defer end(nil)
		converted := b.Log.Converted()
		defer context.AfterFunc(converted, func() { end(context.Cause(converted)) })()
		return errors.Join(s.Run(ctx), context.Cause(converted))
	}})
}
