package daemon

import (
	"context"
)

// Run serves the admin port and runs the actors in order, as a [Group] does,
// until ctx ends or one of them returns. The stop begins with
// env.Health.Drain, then come the actors, last one first, then the admin
// port, which so stays reachable all the way. With an empty cfg.AdminAddr
// there is no admin port.
func Run(ctx context.Context, cfg Config, env Env, actors ...Actor) error {
	g := Group{StopTimeout: cfg.StopTimeout}
	if cfg.AdminAddr != "" {
		admin, err := NewAdmin(cfg, env)
		if err != nil {
			return err
		}
		env.Log.Info("admin port open", "addr", admin.Addr().String())
		g.Add("admin port", admin.Run)
	}
	for _, a := range actors {
		g.Add(a.Name, a.Run)
	}
	g.Add("drain", func(ctx context.Context) error {
		<-ctx.Done()
		env.Log.Info("stopping")
		env.Health.Drain()
		return nil
	})
	return g.Run(ctx)
}
