package janitor

import (
	"cmp"
	"fmt"
	"time"

	"rejoin/shared/daemon"
	"rejoin/shared/flagtype"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Config configures the service. Each field is a flag of the programs that run it.
type Config struct {
	// JanitorAddr is the address of the HTTP interface, host:port; port 0 takes
	// any free one. Empty: no listener, which is for a program that serves
	// [Service.Routes] itself. Default: 127.0.0.1:8082.
	JanitorAddr string `default:"127.0.0.1:8082" help:"Address of the API on retained sessions; port 0 selects a free port." placeholder:"HOST:PORT"`

	// JanitorHosts are the names, besides those of the loopback interface, that a
	// request's Host header may have, without port.
	JanitorHosts []string `help:"Host names, in addition to localhost, that clients may use for the janitor." placeholder:"HOST"`

	// Interval is the time between two sweeps. Default: 5 s.
	Interval time.Duration `default:"5s" help:"Time between two sweeps."`

	// Lease is how long the janitor of a partition may be unavailable until another one acts, at the
	// latest after three times as long. It is renewed every third of it. An installation's
	// first janitor decides. At least 1 s; 0: the default. Default: 5 s.
	Lease time.Duration `default:"5s" help:"How long the lease of a partition is valid without renewal; another janitor takes over within three times as long."`

	// SyncInterval is the sync_interval of the NATS servers: entries that they stored more than
	// two intervals ago survive a loss of power. The janitor deletes announced entries after that
	// time. Default: 2 min, which is the servers' default; 0 for servers that always sync.
	SyncInterval time.Duration `name:"nats-sync-interval" default:"2m" help:"The sync_interval of the NATS servers; announced entries are deleted after twice as long."`

	// ClosedGrace is how long the events of a closed session are kept. Default: 5 min.
	ClosedGrace time.Duration `default:"5m" help:"How long the events of a closed session are kept."`

	// TombstoneTTL is how long the name of a closed session cannot be reused. It is free again when
	// the floor has passed its last entry in the log, a while later. Not shorter than ClosedGrace.
	// Default: 24 h.
	TombstoneTTL time.Duration `name:"tombstone-ttl" default:"24h" help:"How long the name of a closed session cannot be reused."`

	// IdleAfter is how long a session may have no events in the log, no subscribers and
	// no requests until it is closed; -1 for no limit. 0, which no flag gives, is the same.
	// Default: 24 h.
	IdleAfter flagtype.Duration `default:"24h" help:"How long a session may have no events in the log, subscribers or requests before it is closed; -1 for unlimited." placeholder:"DURATION"`

	// UnusedAfter is how long a session may be open that was never used: nothing was stored in
	// it but its opening, and no edge knows of a subscriber or request since it was created.
	// Sessions that were created before the acting janitor began, or its last outage ended, or while an
	// edge ran that has stopped since, count as used, since that is unknown. -1 and 0: as long as any other. Default: 1 h.
	UnusedAfter flagtype.Duration `default:"1h" help:"How long a session that was never used (no event, subscriber or request since its creation) stays open; 0 or -1 for as long as any other." placeholder:"DURATION"`

	// IdleAfterOverride is how long the metadata of a session may ask to stay open so, and
	// without use; -1 for no limit. Default: 0, which is no longer than IdleAfter and UnusedAfter.
	IdleAfterOverride flagtype.Duration `default:"0s" help:"Maximum idleAfter that the metadata of a session may request; -1 for unlimited, 0 for no more than --idle-after and --unused-after." placeholder:"DURATION"`

	// MaxEventsOverride and MaxBytesOverride are how many events and bytes the metadata
	// of a session may ask for; -1 any number. Default: 0, which is no more than the
	// log's limits.
	MaxEventsOverride int64          `default:"0" help:"Maximum events that the metadata of a session may request beyond the log's limit; -1 for unlimited, 0 for no more than that limit." placeholder:"N"`
	MaxBytesOverride  flagtype.Bytes `default:"0" help:"Maximum bytes that the metadata of a session may request beyond the log's limit; -1 for unlimited, 0 for no more than that limit." placeholder:"BYTES"`

	// KeepClosedOverride is how long the metadata of a session may ask that its events are kept when
	// it is closed. Default: 24 h.
	KeepClosedOverride flagtype.Duration `default:"24h" help:"Maximum keepClosed that the metadata of a session may request; -1 for unlimited, 0 for no more than --closed-grace." placeholder:"DURATION"`

	// AdminPage serves the admin page at /admin.
	AdminPage bool `name:"admin-page" help:"Serve the admin page at /admin." negatable:""`

	// Streams is how far a session may raise the log's limit of open streams.
	Streams session.StreamsOverride `kong:"-"`

	// Access lets requests in. Default: no access control.
	Access *web.Access `kong:"-"`
}

// Validate returns an error that names the first flag whose value makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Interval < 10*time.Millisecond:
		return fmt.Errorf("--interval must be at least 10ms, not %s", c.Interval)
	case c.Lease != 0 && c.Lease < time.Second:
		return fmt.Errorf("--lease must be at least 1s, not %s", c.Lease)
	case c.SyncInterval != 0 && c.SyncInterval < time.Millisecond: // NATS panics at a nanosecond
		return fmt.Errorf("--nats-sync-interval must be at least 1ms, not %s", c.SyncInterval)
	case c.ClosedGrace < 0:
		return fmt.Errorf("--closed-grace must not be negative, as %s is", c.ClosedGrace)
	case c.TombstoneTTL < c.ClosedGrace:
		return fmt.Errorf("--tombstone-ttl (%s) must not be shorter than --closed-grace (%s)", c.TombstoneTTL, c.ClosedGrace)
	case c.IdleAfter < -1 || c.IdleAfter > 0 && time.Duration(c.IdleAfter) < time.Second:
		return fmt.Errorf("--idle-after must be at least 1s, or -1 for no limit, not %s", time.Duration(c.IdleAfter))
	case c.UnusedAfter < -1 || c.UnusedAfter > 0 && time.Duration(c.UnusedAfter) < time.Second:
		return fmt.Errorf("--unused-after must be at least 1s, or -1 for as long as any other, not %s", time.Duration(c.UnusedAfter))
	case c.IdleAfterOverride < -1:
		return fmt.Errorf("--idle-after-override must not be negative, or -1 for no limit, not %s", time.Duration(c.IdleAfterOverride))
	case c.KeepClosedOverride < -1:
		return fmt.Errorf("--keep-closed-override must not be negative, or -1 for no limit, not %s", time.Duration(c.KeepClosedOverride))
	case c.MaxEventsOverride < -1:
		return fmt.Errorf("--max-events-override must be -1 or more, not %d", c.MaxEventsOverride)
	case c.MaxBytesOverride < -1:
		return fmt.Errorf("--max-bytes-override must be -1 or more, not %d", c.MaxBytesOverride)
	}
	return cmp.Or(daemon.CheckAddr(c.JanitorAddr, "--janitor-addr"), daemon.CheckHosts(c.JanitorHosts, "--janitor-hosts"), c.Streams.Validate())
}

// eventsKept returns how long the events of a closed session are kept, given the retention that it asks for.
func (c Config) eventsKept(asked session.Retention) time.Duration {
	return session.Within(asked.KeepClosed, c.ClosedGrace, time.Duration(c.KeepClosedOverride))
}

// fenceKept is how long the end of a session stays in the log at least, also where its metadata asks for
// less: it refuses the events of an ingest that was paused and believes that the session is open. After six
// minutes NATS has closed that ingest's connection, and it asks the log again (docs/adr/0041).
const fenceKept = 10 * time.Minute

// nameKept returns how long the name of a closed session is kept: as long as its events where the session asks for
// that, but at least fenceKept; else TombstoneTTL.
func (c Config) nameKept(asked session.Retention) time.Duration {
	if asked.KeepClosed > 0 {
		return max(c.eventsKept(asked), fenceKept)
	}
	return c.TombstoneTTL
}
