package subscriber

import (
	"errors"
	"time"

	"rejoin/shared/flagtype"
	"rejoin/shared/web"
)

// Config is about the event streams and polls of an edge.
type Config struct {
	// WindowBytes bounds the memory of the windows of all partitions together.
	WindowBytes flagtype.Bytes `name:"window-bytes" help:"Memory for the newest events (the window)." default:"256MiB" placeholder:"BYTES"`
	// WindowBackfill is how many bytes of the newest events the edge reads when it begins to
	// follow partitions, of all of them together; 0 means as much as fits, -1 none.
	WindowBackfill flagtype.Bytes `name:"window-backfill" help:"Bytes of the newest events to read into memory when the edge begins to follow partitions, for all of them together; 0 for as many as fit, -1 for none." default:"0" placeholder:"BYTES"`
	// PartitionLinger is how long a partition without readers is still followed; -1: all
	// partitions are followed, from the start on.
	PartitionLinger flagtype.Duration `name:"partition-linger" help:"How long the edge follows a partition that no client reads any more; -1 to follow all partitions, always." default:"5m" placeholder:"DURATION"`
	// LogReads is how many reads below the window may run at a time.
	LogReads int `name:"log-reads" help:"Maximum concurrent reads from disk for clients that are too far behind to be served from memory." default:"8" placeholder:"N"`
	// Heartbeat is the time between two cursor events on a connection.
	Heartbeat time.Duration `name:"heartbeat" help:"Time between two cursor events on a connection." default:"15s"`
	// Retry is the reconnection time that clients receive.
	Retry time.Duration `name:"retry" help:"Reconnection time sent to clients (retry:)." default:"3s"`
	// MaxAge is how long a connection lives, give or take a tenth.
	MaxAge time.Duration `name:"max-connection-age" help:"Maximum age of a connection, varied by up to a tenth." default:"10m"`
	// ProxyRequestLimit is how long a proxy before the edge lets a response last in all. Event
	// streams end some seconds earlier, where their clients continue. 0: no limit. Default: 0.
	ProxyRequestLimit time.Duration `name:"proxy-request-limit" help:"How long a proxy in front of the edge lets a response last in all, if it cuts those that are longer; event streams end some seconds earlier, and their clients continue on a new connection. 0 for no such limit." default:"0" placeholder:"DURATION"`
	// WriteTimeout is how long a write may make no progress.
	WriteTimeout time.Duration `name:"write-timeout" help:"How long a write to a client may stall before the connection is closed." default:"10s"`
	// MaxConnections bounds the event streams that are open at a time.
	MaxConnections int `name:"max-connections" help:"Maximum number of open event streams." default:"100000" placeholder:"N"`
	// MaxSessionConnections bounds the open event streams to one session.
	MaxSessionConnections int `name:"max-session-connections" help:"Maximum number of open event streams per session." default:"10000" placeholder:"N"`
	// MaxConnectionSessions bounds the sessions that one connection follows, or, where it names
	// streams, the streams of its sessions. 0: a connection follows one session.
	MaxConnectionSessions int `name:"max-connection-sessions" help:"Maximum number of sessions, or of streams of sessions, that one connection may follow; 0 for none." default:"500" placeholder:"N"`
	// MaxAddressConnections bounds the open event streams of one client address; all of an IPv6 /64
	// network are one.
	MaxAddressConnections int `name:"max-address-connections" help:"Maximum number of open event streams per client address (IPv6: one /64 network)." default:"10000" placeholder:"N"`
	// MaxAddressConnectRate bounds how often a client address may connect or poll, in
	// requests a second; the requests of ten seconds may come at once. 0 and -1: no limit.
	MaxAddressConnectRate int `name:"max-address-connect-rate" help:"Connects and polls per second from one client address (IPv6: one /64 network); bursts of ten seconds' worth are allowed; 0 or -1 for unlimited." default:"0" placeholder:"N"`
	// Drain is over how much time connections are closed when the edge stops.
	Drain time.Duration `name:"drain" help:"Time over which a stopping edge closes its connections, at most two thirds of --stop-timeout." default:"20s"`
	// LedgerPatience is how long an edge waits for a janitor that has not read a partition since
	// its server started, before a gap is sent that is not certain.
	LedgerPatience time.Duration `name:"ledger-patience" help:"How long to wait until a janitor has checked a partition for damage, after its server started or its leader changed, before clients receive a gap that is not certain." default:"5s"`
	// Access lets requests in. Default: no access control.
	Access *web.Access `kong:"-"`
	// Clients tells clients apart. Default: by the peer's address.
	Clients *web.Clients `kong:"-"`
}

// Validate reports the first setting that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.WindowBytes < 1<<10:
		return errors.New("--window-bytes must be at least 1024")
	case c.WindowBackfill < -1:
		return errors.New("--window-backfill must be -1 or more")
	case c.PartitionLinger < -1:
		return errors.New("--partition-linger must be -1 or more")
	case c.LogReads < 1:
		return errors.New("--log-reads must be at least 1")
	case c.MaxConnections < 1 || c.MaxSessionConnections < 1 || c.MaxAddressConnections < 1:
		return errors.New("--max-connections, --max-session-connections and --max-address-connections must be at least 1")
	case c.MaxConnectionSessions < 0:
		return errors.New("--max-connection-sessions must not be negative")
	case c.Heartbeat < 10*time.Millisecond || c.MaxAge < time.Second || c.WriteTimeout < 10*time.Millisecond:
		return errors.New("--heartbeat and --write-timeout must be at least 10ms, --max-connection-age at least 1s")
	case c.ProxyRequestLimit < 0 || c.ProxyRequestLimit > 0 && c.ProxyRequestLimit < time.Second:
		return errors.New("--proxy-request-limit must be at least 1s, or 0 for none")
	case c.Retry < time.Millisecond || c.Drain < 0 || c.LedgerPatience < 0:
		return errors.New("--retry must be at least 1ms, and --drain and --ledger-patience must not be negative")
	}
	return web.CheckLimit(c.MaxAddressConnectRate, "--max-address-connect-rate")
}
