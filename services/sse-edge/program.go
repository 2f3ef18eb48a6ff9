package edge

import (
	"context"

	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/web"
)

// ProgramConfig holds the flags of the program that runs nothing but the edge.
type ProgramConfig struct {
	daemon.Config
	Backend backend.Config    `embed:""`
	Edge    Config            `embed:""`
	Access  web.AccessConfig  `embed:""`
	Clients web.ClientsConfig `embed:""`
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
	cfg.Edge.Access, cfg.Edge.Clients = access, clients
	return backend.Serve(ctx, cfg.Config, env, "sse-edge",
		func(ctx context.Context) (*backend.Backend, error) {
			b, err := backend.Open(ctx, cfg.Backend, "sse-edge", env.Log)
			if err == nil {
				b.Sessions.ReadOnly()
			}
			return b, err
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Edge, b, env) })
}
