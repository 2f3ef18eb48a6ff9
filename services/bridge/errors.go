package bridge

import (
	"context"
	"errors"
	"time"
)

// ErrNoUpstream is returned when a bridge has no MCP server to stand beside.
var ErrNoUpstream = errors.New("--upstream is missing")

var (
	// errEnded is the cause of contexts that end with their session.
	errEnded = errors.New("the session has ended")

	// errCancelled is the cause of a call that the client has cancelled, and that the
	// upstream does not end.
	errCancelled = errors.New("the client has cancelled it")

	// errBusy is returned when there are as many processes as there may be, or as many as
	// this client may have of them.
	errBusy = errors.New("the bridge has too many processes, or too many of this client's")

	// errUnknownRequest is why a response without an open request is left out.
	errUnknownRequest = errors.New("it is about a request that is over")

	// errEarly is why a message before the response to initialize is left out.
	errEarly = errors.New("it came before the response to initialize, and too many did")

	// errClosed is returned when the log takes no more of a stream.
	errClosed = errors.New("the stream is closed")
)

// The pauses between two attempts.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// retry calls try until it succeeds, or ctx ends, and returns ctx's error then.
func retry(ctx context.Context, try func() error) error {
	for pause := firstPause; try() != nil; pause = min(2*pause, lastPause) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}
