// Package ingest takes messages in over HTTP and NATS, and writes them to the log (package eventlog, which
// also stores births, waits for generations and sets fences).
//
//	ingest   handlers.go and nats.go read requests; publish.go and batch.go carry a message to the log
//	request  reads headers and bodies
//	streams  bounds the open streams of a session, and knows which have ended
//	reply    writes the lines of results=each
//	problem  has the errors, and the answer that each becomes
package ingest

import (
	"context"
	"net"
	"time"

	"github.com/gofiber/fiber/v2"
	lru "github.com/hashicorp/golang-lru/v2"

	"rejoin/services/ingest/request"
	"rejoin/services/ingest/streams"
	"rejoin/shared/backend"
	"rejoin/shared/event"
	"rejoin/shared/quota"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

// Service is the ingest service. It is safe for concurrent use.
//
//	New ──▶ Service ── Run ──▶ web.Serve: one goroutine a connection, which
//	                   │       publishes and waits for the acknowledgement: the
//	                   │       order of a connection is the order in the log
//	                   └─────▶ listen: requests on NATS. Those of a session begin in
//	                           their order in one goroutine, its lane; each single
//	                           message is answered in a goroutine of its own
//
// When Run's context ends, web.Serve ends first, then the answers on NATS.
type Service struct {
	cfg          Config
	backend      *backend.Backend
	metrics      *metrics
	traces       *tracing.Traces
	log          publishLog
	publishes    *quota.Pool    // of publishes and closes: MaxInFlight
	visits       visits         // the requests on NATS that are being answered
	natsRequests *quota.Pool    // of requests on NATS, which may wait for their turn: MaxInFlight
	lanes        lanes          // of requests on NATS: one for each session
	arrays       chan struct{}  // one token for each array on NATS that is being stored
	bodies       request.Arrays // of all requests, which check long ones in turn
	sessions     *session.Limits
	streams      *streams.Limit
	endings      streams.Endings
	memory       *quota.Pool // that requests and results may take, in bytes
	// idPrefixes has the prefix of a place's event IDs: its tag is two hashes.
	idPrefixes *lru.Cache[event.TagParts, string]
	// The rates of messages, and of new sessions; nil without a limit.
	publishers, perSession, creators *web.Limiter[string]
	looks                            *web.Limiter[string] // for the ends of a session's streams
	app                              *fiber.App
	ln                               net.Listener
	// limit is context.WithTimeout; a test ends requests by a signal.
	limit func(context.Context, time.Duration) (context.Context, context.CancelFunc)
}
