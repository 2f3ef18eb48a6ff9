package bridge

import "errors"

// ErrNoUpstream is returned when a bridge has no MCP server to stand beside.
var ErrNoUpstream = errors.New("--upstream is missing")

var (
	// errStopping is the cause of contexts that end with the service.
	errStopping = errors.New("the bridge stops")

	// errEnded is the cause of contexts that end with their session.
	errEnded = errors.New("the session has ended")

	// errTimeout is the cause of a call that was without any message for too long.
	errTimeout = errors.New("the MCP server sent nothing for too long")

	// errCancelled is the cause of a call that the client has cancelled, and that the
	// upstream does not end.
	errCancelled = errors.New("the client has cancelled it")

	// errGone is returned when the upstream does not know the session any more.
	errGone = errors.New("the MCP server does not know the session")

	// errExited is returned when the upstream's process has ended.
	errExited = errors.New("the process of the MCP server has ended")

	// errBusy is returned when there are as many processes as there may be, or as many as
	// this client may have of them.
	errBusy = errors.New("the bridge has too many processes, or too many of this client's")

	// errUnknownRequest is why a response is left out that nobody waits for.
	errUnknownRequest = errors.New("it is about a request that is over")

	// errSession is returned when the upstream's name of a session is not visible ASCII
	// (MCP 2025-11-25, session management), or too long.
	errSession = errors.New("the MCP server's session ID is not valid")

	// errNoStream is returned when the upstream has no stream to read or to resume.
	errNoStream = errors.New("the MCP server offers no stream")

	// errUnanswered is the cause of a call whose upstream has ended it without a response.
	errUnanswered = errors.New("the MCP server ended the request without a response")

	// errTooLarge is returned when a message of the upstream is larger than the log takes.
	errTooLarge = errors.New("a message of the MCP server is too large")

	// errClosed is returned when the log takes no more of a stream.
	errClosed = errors.New("the stream is closed")
)
