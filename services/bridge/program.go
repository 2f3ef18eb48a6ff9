package bridge

import (
	"context"
	"errors"
	"time"

	"rejoin/services/bridge/config"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/session"
)

// Config configures the service; see [config.Config].
type Config = config.Config

// ProgramConfig holds the flags of the program that runs nothing but a bridge.
type ProgramConfig struct {
	daemon.Config
	Backend  backend.Config       `embed:""`
	Bridge   Config               `embed:""`
	Sessions session.LimitsConfig `embed:""`

	// AckTimeout is that of [config.Config].
	AckTimeout time.Duration `default:"2s" help:"Maximum time that a publish waits for JetStream."`
}

// Check reports the problems of the flags that would keep the program from starting, a line for each.
func (cfg *ProgramConfig) Check() error {
	c := cfg.Bridge
	c.AckTimeout, c.Sessions = cfg.AckTimeout, cfg.Sessions
	if !c.Wanted() {
		return ErrNoUpstream
	}
	return errors.Join(c.Validate(), cfg.Sessions.Validate())
}

// Run waits for the log, then runs the service, until ctx ends; see [backend.Serve].
func Run(ctx context.Context, cfg ProgramConfig, env daemon.Env) error {
	if err := cfg.Check(); err != nil { // before the wait for a log
		return err
	}
	cfg.Bridge.AckTimeout, cfg.Bridge.Sessions = cfg.AckTimeout, cfg.Sessions
	return backend.Serve(ctx, cfg.Config, env, "bridge",
		func(ctx context.Context) (*backend.Backend, error) {
			cfg.Backend.Metrics = env.Metrics
			return backend.Open(ctx, cfg.Backend, "bridge", env.Log)
		},
		func(b *backend.Backend) (*Service, error) { return New(cfg.Bridge, b, env) })
}
