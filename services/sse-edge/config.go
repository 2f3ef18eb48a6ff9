package edge

import (
	"errors"
	"net/url"
	"strings"

	"rejoin/services/sse-edge/front"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/web"
)

// checkURLs returns an error about the first URL that is none.
func (c Config) checkURLs() error {
	if u, err := url.Parse(c.PublicURL); c.PublicURL != "" && (err != nil || !isWeb(u) || c.PublicURL != u.Scheme+"://"+u.Host) {
		return errors.New("--public-url takes a scheme and a host, such as https://mcp.example")
	}
	for _, server := range c.AuthorizationServers {
		if u, err := url.Parse(server); err != nil || !isWeb(u) || strings.ContainsAny(server, "?#") {
			return errors.New("--authorization-server takes URLs such as https://login.example")
		}
	}
	return nil
}

// Config configures the edge.
type Config struct {
	// EdgeAddr is where the edge listens; port 0 takes any free port.
	EdgeAddr string `name:"edge-addr" help:"Address for subscribers; port 0 selects a free port." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	// EdgeHosts are the names, besides those of the loopback interface, under which
	// subscribers may address the edge.
	EdgeHosts []string `name:"edge-hosts" help:"Host names, in addition to localhost, that subscribers may use for the edge." placeholder:"HOST"`
	// TLS has the edge speak HTTPS, with HTTP/2. Default: it speaks HTTP/1.1 without TLS.
	TLS front.Files `embed:""`
	// Config is about event streams and polls, of /v1 and of MCP.
	subscriber.Config `embed:""`
	// CookieSameSite is the SameSite attribute of the cookies that tokens are exchanged
	// for; empty means lax.
	CookieSameSite web.SameSite `name:"cookie-same-site" help:"SameSite of the cookie at POST /v1/cookie: strict, lax, or none for pages of other sites, which implies Secure and Partitioned." enum:"strict,lax,none" default:"lax"`
	// MCPStreamMethods are the MCP requests that are answered with an event stream from
	// the start, so that their clients can come back. Others are answered with JSON when
	// their response is all there is.
	MCPStreamMethods []string `name:"mcp-stream-methods" help:"MCP methods whose requests always receive an event stream." default:"tools/call,resources/read" placeholder:"METHOD"`
	// MCPResumeStateless gives the events of calls of revision 2026-07-28 IDs, and serves a GET with
	// Last-Event-ID there: the revision has no resuming, but SDKs resume what has IDs. Default: true.
	MCPResumeStateless bool `name:"mcp-resume-stateless" help:"Let clients of MCP 2026-07-28 resume the response to a request with Last-Event-ID, which goes beyond that revision; a call is then cancelled --cancel-grace after its client has gone." default:"true" negatable:""`
	// MCPEvents serves the methods events/list, events/poll and events/stream. Default: they are the MCP
	// server's.
	MCPEvents bool `name:"mcp-events" help:"Serve streams of sessions to clients of MCP 2026-07-28 as MCP Events (events/list, events/poll, events/stream). Experimental." negatable:""`
	// PublicURL is where clients reach the edge: scheme and host. With access control,
	// MCP clients are told there where to get a token. Default: they are not.
	PublicURL string `name:"public-url" help:"URL under which clients reach the edge, such as https://mcp.example; tells MCP clients where to get a token." placeholder:"URL"`
	// AuthorizationServers are the issuers of the tokens, as MCP clients are told.
	AuthorizationServers []string `name:"authorization-server" help:"URL of the authorization server that issues tokens, announced to MCP clients; with --public-url." placeholder:"URL"`
	// Playground serves the playground at /.
	Playground bool `name:"playground" help:"Serve the playground at /." negatable:""`
}

// Validate reports the first setting that makes no sense.
func (c Config) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	if c.MCPEvents && c.Heartbeat > maxEventsHeartbeat {
		return errors.New("--heartbeat must be at most 30s with --mcp-events")
	}
	return errors.Join(c.checkURLs(), c.TLS.Validate())
}
