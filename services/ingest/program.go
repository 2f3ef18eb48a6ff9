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

// Run waits for the log, then runs the service and the admin port until ctx ends.
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	b, err := backend.Open(ctx, cfg.Backend, "ingest", env.Log)
	if err != nil {
		return err
	}
	defer b.Close()
	s, err := New(cfg.Ingest, b, env)
	if err != nil {
		return err
	}
	return daemon.Run(ctx, cfg.Config, env, daemon.Actor{Name: "ingest", Run: s.Run})
}
