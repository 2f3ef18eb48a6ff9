// Package edge streams events to clients: over Server-Sent Events, and as pages of
// JSON to clients that poll. Package mcpedge serves clients of MCP.
//
//	edge        reads requests of /v1; mcpedge those of /mcp; front speaks TLS and HTTP/2 before both
//	subscriber  authenticates clients, and opens their readers; admission counts their connections
//	delivery    writes a reader's events and gaps to the client's connection
//	cursor      follows the partitions, and reads a stream: from the window, or below it from the log
//	window      holds the newest events of a partition in memory
package edge

import (
	"log/slog"
	"net"

	"github.com/gofiber/fiber/v2"
	"github.com/nats-io/nats.go"

	"rejoin/services/sse-edge/front"
	"rejoin/services/sse-edge/mcpedge"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
	"rejoin/shared/session"
)

// Service is a running edge.
//
//	Run ─┬─ subscriber.Service
//	     │    ├─ for each partition that is read: tail ──▶ window (and one goroutine of nats.go)
//	     │    │                      watch, looks         generations; a look after a jump
//	     │    └─ workers, one a processor: the cursor loop of all event streams
//	     ├─ mcpedge.Service: which of several connections of an MCP client receives the messages
//	     ├─ presence.Serve: tells the janitor which sessions have visitors
//	     ├─ inspect.Serve: reports their connections and history to it
//	     ├─ front.Serve, with TLS: hands requests to web.Serve
//	     ├─ web.Serve ── for each request a goroutine of fasthttp
//	     │                 └─ for each event stream, once hijacked: a reader that
//	     │                    notices when the client disconnects
//	     └─ stops in this order: no new streams, streams closed over --drain, pages
//	        answered, listener closed, tails ended
type Service struct {
	cfg      Config
	nc       *nats.Conn
	log      *eventlog.Log
	sessions *session.Registry
	logger   *slog.Logger
	memory   *quota.Pool // bounds the bytes that clients make the edge hold
	app      *fiber.App
	ln       net.Listener
	front    *front.Server // nil without TLS
	subs     *subscriber.Service
	mcp      *mcpedge.Service
}
