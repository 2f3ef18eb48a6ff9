package upstream

import "errors"

var (
	// ErrStopping is the cause of contexts that end with the service.
	ErrStopping = errors.New("the bridge stops")

	// ErrPaused is returned when the bridge does not know whether its name is its own still.
	ErrPaused = errors.New("the bridge was paused, and another one may have taken over")

	// ErrTimeout is the cause of a call that was without any message for too long.
	ErrTimeout = errors.New("the MCP server sent nothing for too long")

	// ErrCancelled is the cause of a call that the client has cancelled, and that the upstream does
	// not end.
	ErrCancelled = errors.New("the client has cancelled it")

	// ErrGone is returned when the upstream does not know the session any more.
	ErrGone = errors.New("the MCP server does not know the session")

	// ErrExited is returned when the upstream's process has ended.
	ErrExited = errors.New("the process of the MCP server has ended")

	// errStart is returned when there can be no process of the MCP server.
	errStart = errors.New("the MCP server cannot be started")

	// ErrSession is returned when the upstream's name of a session is not visible ASCII
	// (MCP 2025-11-25, session management), or too long.
	ErrSession = errors.New("the MCP server's session ID is not valid")

	// ErrNoStream is returned when the upstream has no stream to read or to resume.
	ErrNoStream = errors.New("the MCP server offers no stream")

	// ErrUnanswered is the cause of a call whose upstream has ended it without a response.
	ErrUnanswered = errors.New("the MCP server ended the request without a response")

	// ErrFiles is returned when the program has no file left for a connection to the MCP server.
	ErrFiles = errors.New("the limit of open files (ulimit -n) has no room for another connection to the MCP server")

	// ErrRestarted is the cause of a call of a bridge that has ended, without event IDs by which the next one
	// could resume it.
	ErrRestarted = errors.New("the bridge was restarted during the request, and the MCP server resumes none")

	// ErrTooLarge is returned when a message of the upstream is larger than the log takes.
	ErrTooLarge = errors.New("a message of the MCP server is too large")
)
