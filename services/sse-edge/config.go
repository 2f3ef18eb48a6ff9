package edge

import (
	"cmp"
	"errors"
	"time"

	"rejoin/services/sse-edge/front"
	"rejoin/services/sse-edge/mcpedge"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/daemon"
	"rejoin/shared/web"
)

// Config configures the edge.
type Config struct {
	// EdgeAddr is the address that the edge listens on; port 0 takes any free port.
	EdgeAddr string `name:"edge-addr" help:"Address for subscribers; port 0 selects a free port." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	// EdgeHosts are the names, besides those of the loopback interface, under which
	// subscribers may address the edge.
	EdgeHosts []string `name:"edge-hosts" help:"Host names, in addition to localhost, that subscribers may use for the edge." placeholder:"HOST"`
	// TLS has the edge speak HTTPS, with HTTP/2. Default: it speaks HTTP/1.1 without TLS.
	TLS front.Files `embed:""`
	// Config has the settings of event streams and polls, of /v1 and of MCP.
	subscriber.Config `embed:""`
	// CookieSameSite is the SameSite attribute of the cookies that tokens are exchanged
	// for; empty means lax.
	CookieSameSite web.SameSite `name:"cookie-same-site" help:"SameSite of the cookie at POST /v1/cookie: strict, lax, or none for pages of other sites, which implies Secure and Partitioned." enum:"strict,lax,none" default:"lax"`
	// MCP has the settings for clients of MCP.
	MCP mcpedge.Config `embed:""`
	// Playground serves the playground at /.
	Playground bool `name:"playground" help:"Serve the playground at /." negatable:""`
}

// DrainWithin limits the drain to two thirds of the program's stop timeout, at whose end the remaining
// connections are cut.
func (c *Config) DrainWithin(stopTimeout time.Duration) {
	c.Drain = min(c.Drain, cmp.Or(stopTimeout, daemon.DefaultStopTimeout)*2/3)
}

// spareConnections is the number of connections that may be open besides event streams.
const spareConnections = 1000

// bounds returns the bounds of the edge's listener. Three quarters of them suffice for as many event streams as one
// address may have: a proxy that is not trusted is one address.
func (c Config) bounds() web.Bounds {
	address := min(c.MaxConnections, c.MaxAddressConnections) + spareConnections
	return web.Bounds{Connections: max(c.MaxConnections+spareConnections, address*4/3+1), Address: address, Clients: c.Clients}
}

// Validate reports the first setting that makes no sense.
func (c Config) Validate() error {
	if c.EdgeAddr == "" {
		return errors.New("--edge-addr is empty")
	}
	if err := cmp.Or(c.Config.Validate(), daemon.CheckAddr(c.EdgeAddr, "--edge-addr"), daemon.CheckHosts(c.EdgeHosts, "--edge-hosts")); err != nil {
		return err
	}
	return errors.Join(c.MCP.Validate(c.Heartbeat), c.TLS.Validate())
}
