package janitor

import (
	"context"
	"errors"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// ProgramConfig holds the flags of the program that runs nothing but the janitor.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config          `embed:""`
	Log     LogFlags                `embed:""`
	Janitor Config                  `embed:""`
	Streams session.StreamsOverride `embed:""`
	Access  web.AccessConfig        `embed:""`
}

// Run creates what is missing of the log and the registry, then runs the service
// until ctx ends; see [backend.Serve]. It is ready when the ledger is complete.
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	cfg.Janitor.Streams = cfg.Streams
	if err := errors.Join(cfg.Janitor.Validate(), cfg.Log.Validate()); err != nil {
		return err
	}
	access, err := web.NewAccess(cfg.Access, env)
	if err != nil {
		return err
	}
	cfg.Janitor.Access = access
	return backend.Serve(ctx, cfg.Config, env, "janitor",
		func(ctx context.Context) (*backend.Backend, error) {
			return backend.Create(ctx, cfg.Backend, "janitor", cfg.Log.Settings(), env.Log)
		},
		func(b *backend.Backend) (*Service, error) {
			cfg.Log.WarnOfDifferences(b.Log.Settings(), env.Log)
			return New(cfg.Janitor, b, env)
		})
}
