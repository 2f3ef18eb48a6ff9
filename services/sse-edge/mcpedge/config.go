package mcpedge

import (
	"errors"
	"net/url"
	"strings"
	"time"
)

// Config has the settings for clients of MCP.
type Config struct {
	// StreamMethods are the MCP requests that are answered with an event stream from
	// the start, so that their clients can resume. Others are answered with JSON when the
	// response is their only message.
	StreamMethods []string `name:"mcp-stream-methods" help:"MCP methods whose requests always receive an event stream." default:"tools/call,resources/read" placeholder:"METHOD"`
	// ResumeStateless gives the events of calls of revision 2026-07-28 IDs, and serves a GET with
	// Last-Event-ID there: the revision has no resuming, but SDKs resume streams with IDs. Default: true.
	ResumeStateless bool `name:"mcp-resume-stateless" help:"Let clients of MCP 2026-07-28 resume the response to a request with Last-Event-ID, which goes beyond that revision; a call is then cancelled --cancel-grace after its client has disconnected." default:"true" negatable:""`
	// Events serves the methods events/list, events/poll and events/stream. Default: the MCP server
	// serves them.
	Events bool `name:"mcp-events" help:"Serve streams of sessions to clients of MCP 2026-07-28 as MCP Events (events/list, events/poll, events/stream). Experimental." negatable:""`
	// PublicURL is the edge's URL for clients: scheme and host. With access control MCP clients learn
	// there where to get a token. Default: none.
	PublicURL string `name:"public-url" help:"URL under which clients reach the edge, such as https://mcp.example; tells MCP clients where to get a token." placeholder:"URL"`
	// AuthorizationServers are the issuers of the tokens, which MCP clients receive.
	AuthorizationServers []string `name:"authorization-server" help:"URL of the authorization server that issues tokens, announced to MCP clients; with --public-url." placeholder:"URL"`
}

// maxEventsHeartbeat is the longest time between two heartbeats that the sketch of MCP Events allows.
const maxEventsHeartbeat = 30 * time.Second

// Validate reports the first setting that makes no sense; heartbeat is that of the streams.
func (c Config) Validate(heartbeat time.Duration) error {
	if c.Events && heartbeat > maxEventsHeartbeat {
		return errors.New("--heartbeat must be at most 30s with --mcp-events")
	}
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

func isWeb(u *url.URL) bool { return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" }
