package ingest

import (
	"context"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// ProgramConfig holds the flags of the program that runs nothing but ingest.
type ProgramConfig struct {
	daemon.Config
	Backend  backend.Config          `embed:""`
	Streams  session.StreamsOverride `embed:""`
	Sessions session.LimitsConfig    `embed:""`
	Ingest   Config                  `embed:""`
	Access   web.AccessConfig        `embed:""`
	Clients  web.ClientsConfig       `embed:""`
}

// Run waits for the log, then runs the service, until ctx ends; see [backend.Serve].
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	access, err := web.NewAccess(cfg.Access, env)
	if err != nil {
		return err
	}
	clients, err := web.NewClients(cfg.Clients)
	if err != nil {
		return err
	}
	cfg.Ingest.Access, cfg.Ingest.Clients, cfg.Ingest.Streams = access, clients, cfg.Streams
	cfg.Ingest.Sessions = cfg.Sessions
	return backend.Serve(ctx, cfg.Config, env, "ingest",
		func(ctx context.Context) (*backend.Backend, error) {
			return backend.Open(ctx, cfg.Backend, "ingest", env.Log)
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Ingest, b, env) })
}
