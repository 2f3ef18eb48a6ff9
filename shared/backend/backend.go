// Package backend opens the common resources of all services: the connection to NATS, the
// log, and the session registry.
package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/eventlog"
	"rejoin/shared/inbox"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
)

// Config configures the connection to NATS.
type Config struct {
	// NATSURL is one URL of a NATS server, or several with commas between them.
	NATSURL string `name:"nats-url" help:"URL of the NATS server; separate several with commas." default:"nats://127.0.0.1:4222" placeholder:"URL"`
	// NATSCreds is a credentials file, and NATSNkey a file with the seed of an NKey; at
	// most one of them.
	NATSCreds string `name:"nats-creds" help:"Credentials file for NATS." type:"path" placeholder:"FILE"`
	NATSNkey  string `name:"nats-nkey" help:"File with the seed of an NKey for NATS." type:"path" placeholder:"FILE"`

	// Now is the clock for times that are compared with other machines. Nil: time.Now.
	Now func() time.Time `kong:"-"`
	// Metrics has the metrics of the connection, also before it is open. Nil: none are registered.
	Metrics prometheus.Registerer `kong:"-"`
	// ByPartition has [Create] open the registry with [session.ByPartition].
	ByPartition bool `kong:"-"`
}

// Backend has the resources of a service. It is safe for concurrent use.
type Backend struct {
	Conn     *nats.Conn
	Log      *eventlog.Log
	Sessions *session.Registry

	now func() time.Time
}

// Now returns the time, by [Config.Now].
func (b *Backend) Now() time.Time {
	if b.now == nil {
		return time.Now()
	}
	return b.now()
}

// Open connects and opens the log and the registry, whose copy is without metadata, and waits
// until both exist or ctx ends. name is shown in NATS's monitoring and names the metrics. Errors are those of
// [eventlog.Open] and [session.OpenRegistry].
func Open(ctx context.Context, cfg Config, name string, log *slog.Logger, opts ...nats.Option) (*Backend, error) {
	return open(ctx, cfg, name, log, opts, func(ctx context.Context, b *Backend) (err error) {
		if b.Log, err = eventlog.Open(ctx, b.Conn, log); err != nil {
			return err
		}
		b.Sessions, err = session.OpenRegistry(ctx, b.Log, log, session.WithoutMetadata()) // which janitors alone show
		return err
	})
}

// Create is Open for the one service that creates missing parts of the log and missing buckets. It waits for
// NATS, but not for the log. Errors are those of [eventlog.Create] and [session.Create], and
// wrap [session.ErrUnavailable] when another bucket cannot be created.
func Create(ctx context.Context, cfg Config, name string, settings eventlog.Settings, log *slog.Logger, opts ...nats.Option) (*Backend, error) {
	return open(ctx, cfg, name, log, opts, func(ctx context.Context, b *Backend) (err error) {
		if b.Log, err = eventlog.Create(ctx, b.Conn, settings, log); err != nil {
			return err
		}
		// Before the registry, for which the others wait.
		if err = rpc.CreateBuckets(ctx, b.Conn, b.Log.Settings().Replicas); err != nil {
			return fmt.Errorf("%w: %w", session.ErrUnavailable, err)
		}
		var options []session.Option
		if cfg.ByPartition {
			options = append(options, session.ByPartition())
		}
		b.Sessions, err = session.Create(ctx, b.Log, log, options...)
		return err
	})
}

// retryEvery is the pause between two attempts while NATS is unavailable.
const retryEvery = 200 * time.Millisecond

// awaitConnection returns when there is a connection or ctx ends. It logs each reason for a
// missing connection once.
func awaitConnection(ctx context.Context, nc *nats.Conn, log *slog.Logger) {
	reported := map[string]bool{}
	for !nc.IsConnected() {
		reason := nats.ErrNoServers // the client keeps no reason of a server that does not listen
		if err := nc.LastError(); err != nil {
			reason = err
		}
		if op, ok := errors.AsType[*net.OpError](reason); ok { // whose text has the port of each try
			reason = op.Err
		}
		if !reported[reason.Error()] {
			reported[reason.Error()] = true
			log.Warn("waiting for NATS", "reason", reason)
		}
		if !natsconn.Pause(ctx, retryEvery) {
			return
		}
	}
}

// attempt calls parts. A request that was under way when the connection was lost is
// never answered, so a loss ends the attempt.
func attempt(ctx context.Context, b *Backend, parts func(context.Context, *Backend) error) (lost bool, err error) {
	ctx, done := natsconn.While(ctx, b.Conn)
	defer done()
	err = parts(ctx, b)
	return errors.Is(context.Cause(ctx), natsconn.ErrChanged), err
}

// unavailable reports whether an error means that NATS did not answer at all, or that its cluster
// has too few servers yet.
func unavailable(err error) bool {
	return natsconn.Passes(err) || natsconn.Code(err) == 0 && (errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, session.ErrUnavailable))
}

// Connect opens a connection to NATS, without a log on it: see [eventlog.Connect]. Its
// inboxes have the [inbox.Prefix] of its name.
func (cfg Config) Connect(name string, log *slog.Logger, opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{nats.CustomInboxPrefix(inbox.Prefix(name))}, opts...)
	switch {
	case cfg.NATSCreds != "" && cfg.NATSNkey != "":
		return nil, errors.New("--nats-creds and --nats-nkey exclude each other")
	case cfg.NATSCreds != "":
		opts = append(opts, nats.UserCredentials(cfg.NATSCreds))
	case cfg.NATSNkey != "":
		seed, err := nats.NkeyOptionFromSeed(cfg.NATSNkey)
		if err != nil {
			return nil, fmt.Errorf("--nats-nkey %s cannot be used: %w", cfg.NATSNkey, err)
		}
		opts = append(opts, seed)
	}
	return eventlog.Connect(cfg.NATSURL, name, log, opts...)
}

func open(ctx context.Context, cfg Config, name string, log *slog.Logger, opts []nats.Option, parts func(context.Context, *Backend) error) (*Backend, error) {
	nc, err := cfg.Connect(name, log, opts...)
	if err != nil {
		return nil, err
	}
	if cfg.Metrics != nil {
		register(nc, name, cfg.Metrics)
	}
	b := &Backend{Conn: nc, now: cfg.Now}
	said := ""
	for {
		awaitConnection(ctx, nc, log)
		var lost bool
		lost, err = attempt(ctx, b, parts)
		if err == nil || !lost && !unavailable(err) || ctx.Err() != nil {
			break
		}
		if said != err.Error() {
			said = err.Error()
			log.Info("the log cannot be opened yet", "reason", err)
		}
		if b.Log != nil {
			b.Log.Close()
		}
		natsconn.Pause(ctx, retryEvery)
	}
	if errors.Is(err, eventlog.ErrMismatch) && cfg.NATSURL != "" { // without it NATS is in this process
		err = fmt.Errorf("%s: %w; --nats-url chooses another server", nc.ConnectedUrlRedacted(), err)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close stops following the log and the registry, and closes the connection.
func (b *Backend) Close() {
	if b.Sessions != nil {
		b.Sessions.Close()
	}
	if b.Log != nil {
		b.Log.Close()
	}
	b.Conn.Close()
}

// Connected returns an error while there is no connection to NATS: a readiness check.
func (b *Backend) Connected() error {
	if !b.Conn.IsConnected() {
		return errors.New("not connected to NATS")
	}
	return nil
}
