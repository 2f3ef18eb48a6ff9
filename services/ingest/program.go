package ingest

import (
	"context"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
)

// ProgramConfig holds the flags of the program that runs nothing but ingest.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config `embed:""`
	Ingest  Config         `embed:""`
}

// Run waits for the log, then runs the service, until ctx ends; see [backend.Serve].
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	return backend.Serve(ctx, cfg.Config, env, "ingest",
		func(ctx context.Context) (*backend.Backend, error) {
			return backend.Open(ctx, cfg.Backend, "ingest", env.Log)
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Ingest, b, env) })
}
