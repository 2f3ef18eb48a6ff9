package bridge

import (
	"context"
	"net/http"

	"rejoin/shared/rpc"
)

// serverSide is a session's side of the MCP server. It is safe for concurrent use.
type serverSide interface {
	// serve hands over requests and sees to them until the end. ctx ends with the session.
	serve(ctx context.Context, c *call, client http.Header, data []byte)
	// send hands over messages that are no requests.
	send(ctx context.Context, client http.Header, data []byte) rpc.Answer
	// resume continues a call that another bridge has begun.
	resume(ctx context.Context, c *call, client http.Header)
	// listen stores what is about no request, until ctx ends or there is nothing of it.
	listen(ctx context.Context, c *call, client func() http.Header)
	// close ends the session upstream.
	close(ctx context.Context, client http.Header)
}
