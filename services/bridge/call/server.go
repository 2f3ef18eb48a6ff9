package call

import (
	"context"
	"net/http"

	"rejoin/shared/rpc"
)

// Upstream is a session's side of the MCP server. It is safe for concurrent use.
type Upstream interface {
	// Serve hands over requests, and serves them until the end. ctx ends with the session.
	Serve(ctx context.Context, c *Call, client http.Header, data []byte)
	// Send hands over messages that are no requests.
	Send(ctx context.Context, client http.Header, data []byte) rpc.Answer
	// Resume continues a call that another bridge has begun.
	Resume(ctx context.Context, c *Call, client http.Header)
	// Listen stores the messages that belong to no request, until ctx ends or the server offers none.
	Listen(ctx context.Context, c *Call, client func() http.Header)
	// Close ends the session upstream.
	Close(ctx context.Context, client http.Header)
}
