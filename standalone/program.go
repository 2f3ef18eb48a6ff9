// Package standalone runs a NATS server and all services in one process.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/nats-io/nats.go"

	"rejoin/services/bridge"
	"rejoin/services/ingest"
	"rejoin/services/janitor"
	edge "rejoin/services/sse-edge"
	"rejoin/shared/backend"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/flagtype"
	"rejoin/shared/web"
)

// program has the parts that Run builds, from the ground up, and takes down again.
//
//	folder ◀── nats ◀─┬─ backend ◀── janitor ─┐ routes
//	  lock     store  ├─ backend ◀── ingest ──┤
//	                  ├─ backend ◀── edge ◀───┘
//	                  └─ backend ◀── bridge, when there is an MCP server
//
// Each service has a connection and a backend of its own, as in a process of its own; only the
// process and the ports are shared. The edge's address serves the routes of the others as well.
//
// It starts from the left to the right: lock, version and free space of the folder; every port;
// NATS; the janitor's backend, which creates the log; the others. A start that fails before NATS
// has written VERSION and LOCK at most.
//
// Everything stops from the right to the left: the edge drains first, for 2 s instead of 20,
// since somebody waits at a terminal; then the bridge ends, then ingest answers its pending
// requests, then the janitor ends; the backends close, NATS stops, and the folder's lock is
// released last.
type program struct {
	cfg      Config
	env      daemon.Env
	cleanups []func()
}

// Run runs the program until ctx ends. An error is one sentence for the user.
func Run(ctx context.Context, cfg Config, env daemon.Env) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	access, err := web.NewAccess(cfg.Access, env)
	if err != nil {
		return err
	}
	clients, err := web.NewClients(cfg.Clients)
	if err != nil {
		return err
	}
	cfg.Edge.Access, cfg.Ingest.Access, cfg.Janitor.Access = access, access, access
	cfg.Edge.Clients, cfg.Ingest.Clients = clients, clients
	cfg.Edge.DrainWithin(cfg.StopTimeout)
	cfg.Ingest.Streams, cfg.Janitor.Streams = cfg.Streams, cfg.Streams
	cfg.Ingest.Sessions, cfg.Bridge.Sessions = cfg.Sessions, cfg.Sessions
	cfg.Bridge.AckTimeout = cfg.Ingest.AckTimeout
	if cfg.NATSAddr == "" && !access.On() {
		cfg.NATSAddr = defaultNATSAddr
	}
	p := &program{cfg: cfg, env: env}
	defer p.close()
	actors, err := p.build(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it was starting
		}
		return err
	}
	return daemon.Run(ctx, cfg.Config, env, actors...)
}

// close undoes the steps of build, last one first.
func (p *program) close() {
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.cleanups[i]()
	}
}

func (p *program) build(ctx context.Context) ([]daemon.Actor, error) {
	f, err := openFolder(p.cfg.Data, int64(p.cfg.MinFreeBytes))
	if err != nil {
		return nil, err
	}
	p.cleanups = append(p.cleanups, f.close)
	settings := p.cfg.Log.Settings()
	if settings.MaxBytes == 0 {
		settings.MaxBytes = f.free / 2
	} else if f.isNew() && settings.MaxBytes > f.free/10*9 {
		return nil, fmt.Errorf("a log of %s does not fit where %s is, with %s of free space; set a smaller --max-bytes, or choose another folder with --data",
			flagtype.FormatSize(settings.MaxBytes), f.path, flagtype.FormatSize(f.free))
	}
	// A port that is taken is found before anything is written.
	if err := p.checkAddrs(); err != nil {
		return nil, err
	}
	if err := mendMetadata(f, p.env.Log); err != nil {
		return nil, err
	}
	server, err := startNATS(ctx, f, p.cfg.NATSAddr, p.cfg.Ingest.Access.On(), p.cfg.Janitor.SyncInterval, p.env.Log)
	if err != nil {
		return nil, err
	}
	p.cleanups = append(p.cleanups, server.stop)

	// A stop waits until the parts below are made: that takes a moment, and a server that is
	// stopped in the middle of making a stream leaves half of it (docs/upstream/0009).
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), natsStart)
	defer cancel()
	opts := append([]nats.Option{nats.InProcessServer(server.server), nats.NoCallbacksAfterClientClose()}, server.key...)
	first, err := backend.Create(ctx, backend.Config{Metrics: p.env.Metrics}, "janitor", settings, p.env.Log, opts...)
	if err != nil {
		return nil, explain(f, err)
	}
	p.cleanups = append(p.cleanups, first.Close)
	p.cfg.Log.WarnOfDifferences(first.Log.Settings(), p.env.Log)
	// JetStream keeps the newest file of each partition open.
	if n := first.Log.Settings().Partitions; !p.env.Files.Take("", int64(n)) {
		p.env.Log.Warn("the limit of open files (ulimit -n, LimitNOFILE) has no room for a file for each partition besides those of clients; when clients take all of it, the log fails and the program ends", "partitions", n)
	}
	if limit, room := first.Log.Settings().MaxBytes, server.stored()+f.free; limit > room {
		p.env.Log.Warn("the log may become larger than the disk; set a smaller limit with rejoin log set --max-bytes, or free some space",
			"limit", flagtype.FormatSize(limit), "stored_and_free", flagtype.FormatSize(room))
	}
	open := func(name string) (*backend.Backend, error) {
		b, err := backend.Open(ctx, backend.Config{Metrics: p.env.Metrics}, name, p.env.Log, opts...)
		if err == nil {
			p.cleanups = append(p.cleanups, b.Close)
		}
		return b, err
	}
	second, err := open("ingest")
	if err != nil {
		return nil, err
	}
	third, err := open("sse-edge")
	if err != nil {
		return nil, err
	}
	feed := eventlog.NewFeed() // the janitor's tails ride on the edge's
	first.Log.Share(feed)
	third.Log.Share(feed)
	actors, err := p.services(first, second, third)
	if err != nil {
		return nil, err
	}
	if p.cfg.Bridge.Wanted() {
		last := len(actors) - 1 // the edge, which stops first
		fourth, err := open("bridge")
		if err != nil {
			return nil, err
		}
		b, err := bridge.New(p.cfg.Bridge, fourth, p.env)
		if err != nil {
			return nil, err
		}
		actors = slices.Insert(actors, last, daemon.Actor{Name: "bridge", Run: func(ctx context.Context) error {
			err := b.Run(ctx)
			if errors.Is(err, bridge.ErrReplaced) { // that one needs the NATS of this program
				p.env.Log.Error("the bridge has ended", "error", err)
				fourth.Close() // it may have subscriptions left, for which NATS would send it requests
				<-ctx.Done()
				return nil
			}
			return err
		}})
	}
	return append([]daemon.Actor{{Name: "nats", Run: server.run}}, actors...), nil
}

// services makes the services, each on its own backend. The edge's address serves
// the whole API.
func (p *program) services(forJanitor, forIngest, forEdge *backend.Backend) ([]daemon.Actor, error) {
	j, err := janitor.New(p.cfg.Janitor, forJanitor, p.env)
	if err != nil {
		return nil, err
	}
	in, err := ingest.New(p.cfg.Ingest, forIngest, p.env)
	if err != nil {
		return nil, err
	}
	e, err := edge.New(p.cfg.Edge, forEdge, p.env, append(in.Routes(), j.Routes()...)...)
	if err != nil {
		return nil, err
	}
	p.env.Log.Info("rejoin is open", p.banner(e.URL())...)
	return []daemon.Actor{{Name: "janitor", Run: j.Run}, {Name: "ingest", Run: in.Run}, {Name: "sse-edge", Run: e.Run}}, nil
}

// banner returns the attributes that a user who has just started the program looks for.
func (p *program) banner(url string) []any {
	attrs := []any{"url", url + "/"}
	if p.cfg.Janitor.AdminPage {
		attrs = append(attrs, "admin_page", url+"/admin")
	}
	return append(attrs, "data", p.cfg.Data, "version", daemon.CurrentVersion())
}

// checkAddrs reports the first address that must not or cannot be listened on.
func (p *program) checkAddrs() error {
	if err := p.cfg.checkReach(); err != nil {
		return err
	}
	// Kept until all are checked, so that two flags with one port are found.
	var open []net.Listener
	defer func() {
		for _, ln := range open {
			_ = ln.Close()
		}
	}()
	for _, a := range p.cfg.addrs() {
		if a.addr == "" {
			continue // switched off
		}
		ln, err := daemon.Listen(a.addr, a.flag)
		if err != nil {
			return err
		}
		open = append(open, ln)
	}
	return nil
}

// explain adds to an error what to do about a log that cannot be created or opened.
func explain(f *folder, err error) error {
	switch {
	case errors.Is(err, eventlog.ErrMismatch):
		return fmt.Errorf("%s: %w; --data chooses another folder", f.path, err)
	case errors.Is(err, eventlog.ErrFull):
		return fmt.Errorf("%s has %s of free space, too little for the log; free some space, or set a smaller --max-bytes", f.path, flagtype.FormatSize(f.free))
	default:
		return err
	}
}
