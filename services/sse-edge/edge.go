// Package edge streams events to clients: over Server-Sent Events, and as pages of
// JSON to those that poll.
package edge

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/nats-io/nats.go"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

// Service is a running edge.
//
//	Run ─┬─ for each partition: tail ──▶ window      (and one goroutine of nats.go)
//	     │                      watch, looks         generations; a look after a jump
//	     ├─ attachments: which of several connections of an MCP client gets the messages
//	     ├─ presence.Serve: tells the janitor which sessions have visitors
//	     ├─ inspect.Serve: tells it who they are, and what was sent to them
//	     ├─ workers, one a processor: the cursor loop of all event streams
//	     ├─ web.Serve ── for each request a goroutine of fasthttp
//	     │                 └─ for each event stream, once hijacked: a reader that
//	     │                    notices when the client goes
//	     └─ stops in this order: no new streams, streams closed over --drain, pages
//	        answered, listener closed, tails ended
type Service struct {
	cfg      Config
	nc       *nats.Conn
	log      *eventlog.Log
	sessions *session.Registry
	logger   *slog.Logger
	health   *daemon.Health
	app      *fiber.App
	ln       net.Listener
	parts    *cursor.Partitions
	streams  *delivery.Streams
	metrics  *metrics
	traces   *tracing.Traces
	memory   *quota.Pool // that clients may make the edge hold, in bytes

	base context.Context // of all streams; ends when they must
	end  context.CancelFunc

	attached *attachments
	unheard  unheard       // for tasks
	checks   chan struct{} // holds a token for each check in progress
	// checkEvery and unheardFor are the constants, or a test's.
	checkEvery, unheardFor time.Duration
	admitted               *admission.Admission
	connects               *web.Limiter[netip.Addr] // by client address; nil without a limit
}
