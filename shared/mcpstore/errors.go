package mcpstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"rejoin/shared/eventlog"
	"rejoin/shared/natsconn"
	"rejoin/shared/session"
)

var (
	// ErrLost is returned by After when events after the index were, or may have been,
	// trimmed, cleared or lost with a roll-back, or could not be stored. It wraps [mcp.ErrEventsPurged].
	ErrLost = fmt.Errorf("events after the index are lost: %w", mcp.ErrEventsPurged)

	// ErrAhead is returned by After when the log ends before the index: the log was created
	// again, has lost its newest entries, or never had the event. It wraps [mcp.ErrEventsPurged].
	ErrAhead = fmt.Errorf("the log ends before the index: %w", mcp.ErrEventsPurged)

	// ErrForked is returned by After when two replicas have written to the stream at
	// the same time. It wraps [mcp.ErrEventsPurged].
	ErrForked = fmt.Errorf("the stream has two writers: %w", mcp.ErrEventsPurged)

	// ErrUnknownSession is returned by After for a session without an opening.
	ErrUnknownSession = errors.New("the session is not known")

	// ErrInvalidName is returned when a session or stream has a name that the log cannot hold.
	ErrInvalidName = errors.New("the name is not valid")
)

// attemptEvery is the pause between two attempts.
const attemptEvery = 50 * time.Millisecond

// patiently tries again until ctx ends while the error may be temporary.
func patiently(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil || !passing(err) {
			return err
		}
		if !natsconn.Pause(ctx, attemptEvery) {
			return err
		}
	}
}

// passing reports whether an error may be temporary.
func passing(err error) bool {
	return errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrUnknown) || errors.Is(err, eventlog.ErrNotFound) ||
		errors.Is(err, session.ErrUnavailable)
}
