package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"rejoin/shared/daemon"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// Config configures the service. Each field is a flag of the programs that run it.
type Config struct {
	// IngestAddr is the address that publishers reach, host:port; port 0 takes
	// any free one. Default: 127.0.0.1:8081.
	IngestAddr string `default:"127.0.0.1:8081" help:"Address for publishers; port 0 selects a free port." placeholder:"HOST:PORT"`

	// IngestHosts are the names, besides those of the loopback interface, that a
	// request's Host header may have, without port.
	IngestHosts []string `help:"Host names, in addition to localhost, that publishers may use for ingest." placeholder:"HOST"`

	// AckTimeout bounds a publish, from the look at the session's state to
	// JetStream's acknowledgement. Default: 2 s.
	AckTimeout time.Duration `default:"2s" help:"Maximum time that a publish waits for JetStream."`

	// MaxInFlight is how many publishes and closes may be under way at once; more are
	// answered 503. Once three quarters of the slots are taken, a publisher (over HTTP, as for
	// MaxPublishRate) or session (on NATS) has no more than a quarter. Default: 4096.
	MaxInFlight int `default:"4096" help:"Maximum number of concurrent publishes, closes and changes of members." placeholder:"N"`

	// MaxPublishRate bounds the messages of a publisher over HTTP, which is a token's
	// subject, or without access control a client address; MaxSessionPublishRate those
	// of a session, over NATS as well. Both are messages a second at this ingest; those
	// of ten seconds may be sent at once. A message over the limit is answered 429, a batch
	// is slowed down. 0 and -1: no limit. Default: 0.
	MaxPublishRate        int `default:"0" help:"Messages per second from one token subject (without access control: from one client address; IPv6: one /64 network) over HTTP, at this ingest; bursts of ten seconds' worth are allowed; 0 or -1 for unlimited." placeholder:"N"`
	MaxSessionPublishRate int `default:"0" help:"Messages per second to one session, at this ingest; bursts of ten seconds' worth are allowed; 0 or -1 for unlimited." placeholder:"N"`

	// MaxSessionRate bounds the new sessions, changes of members and closes of streams of a client over HTTP,
	// by token or address as MaxPublishRate, all of them together in a second at this ingest; those of ten
	// seconds may be sent at once. One more is answered 429. 0 and -1: no limit. Default: 100.
	MaxSessionRate int `default:"100" help:"New sessions, changes of members and closes of streams per second from one token subject (without access control: from one client address; IPv6: one /64 network) over HTTP, at this ingest; bursts of ten seconds' worth are allowed; 0 or -1 for unlimited." placeholder:"N"`

	// Messages says what a message may be: [MessagesAny] JSON value, or one JSON-RPC 2.0 message
	// ([MessagesJSONRPC]). A session of an MCP server, and one whose metadata says so, takes
	// JSON-RPC alone in any case. Default: any.
	Messages string `default:"any" enum:"any,jsonrpc" help:"What a message may be: any JSON value, or only JSON-RPC 2.0 (any, jsonrpc). Sessions of MCP servers take only JSON-RPC in any case." placeholder:"KIND"`

	// Sessions bound the sessions of all services.
	Sessions session.LimitsConfig `kong:"-"`

	// Streams is how far a session may raise the log's limit of open streams.
	Streams session.StreamsOverride `kong:"-"`

	// Access lets requests in. Default: no access control.
	Access *web.Access `kong:"-"`

	// Clients tells clients apart. Default: by the peer's address.
	Clients *web.Clients `kong:"-"`
}

// The values of [Config.Messages]; empty is any.
const (
	MessagesAny     = "any"
	MessagesJSONRPC = "jsonrpc"
)

// Validate returns an error that names the first flag whose value makes no sense.
func (c Config) Validate() error {
	switch {
	case c.IngestAddr == "":
		return errors.New("--ingest-addr is empty")
	case c.AckTimeout <= 0:
		return fmt.Errorf("--ack-timeout must be positive, not %s", c.AckTimeout)
	case c.Messages != "" && c.Messages != MessagesAny && c.Messages != MessagesJSONRPC:
		return fmt.Errorf("--messages must be %s or %s, not %q", MessagesAny, MessagesJSONRPC, c.Messages)
	case c.MaxInFlight < 1:
		return fmt.Errorf("--max-in-flight must be at least 1, not %d", c.MaxInFlight)
	}
	return cmp.Or(
		daemon.CheckAddr(c.IngestAddr, "--ingest-addr"),
		daemon.CheckHosts(c.IngestHosts, "--ingest-hosts"),
		web.CheckLimit(c.MaxPublishRate, "--max-publish-rate"),
		web.CheckLimit(c.MaxSessionPublishRate, "--max-session-publish-rate"),
		web.CheckLimit(c.MaxSessionRate, "--max-session-rate"),
		c.Sessions.Validate(),
		c.Streams.Validate(),
	)
}

// closeTimeout bounds a close: a session of 100,000 streams takes about 5 s.
func (c Config) closeTimeout() time.Duration { return c.AckTimeout + 5*time.Second }
