package mcpstore

import (
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var (
	// ErrLost is returned by After when something after the index was dropped, or may
	// have been: it was trimmed, cleared or lost with a roll-back, or could not be
	// stored. It wraps [mcp.ErrEventsPurged].
	ErrLost = fmt.Errorf("events behind the index are gone: %w", mcp.ErrEventsPurged)

	// ErrAhead is returned by After when the log ends before the index: it was made
	// again, has lost its end, or never had the event. It wraps [mcp.ErrEventsPurged].
	ErrAhead = fmt.Errorf("the log ends before the index: %w", mcp.ErrEventsPurged)

	// ErrForked is returned by After when two replicas have written to the stream at
	// the same time. It wraps [mcp.ErrEventsPurged].
	ErrForked = fmt.Errorf("the stream has two writers: %w", mcp.ErrEventsPurged)

	// ErrUnknownSession is returned by After for a session without an opening.
	ErrUnknownSession = errors.New("the session is not known")

	// ErrInvalidName is returned when a session or stream has a name that the log cannot hold.
	ErrInvalidName = errors.New("the name is not valid")
)
