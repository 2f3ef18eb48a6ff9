package delivery

import (
	"context"
	"time"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/inspect"
)

// Format is how a connection writes to its client. Its methods are called by the connection's worker,
// before that by the request that makes the connection.
type Format interface {
	// Kind is the same for formats that make the same blocks of a step.
	Kind() string
	// Protocol is the protocol that operators see.
	Protocol() inspect.Protocol
	// Opening returns the first block.
	Opening(ctx context.Context, from Beginning) []byte
	// Rewrites reports whether events are sent as Event makes them, and not as the window's
	// frames. room is memory that Event may use and returns.
	Rewrites() bool
	Event(b, room []byte, it *window.Item) (event, roomLeft []byte)
	// Gaps returns the blocks of a step's gaps, and Closing the last one of a step that ends
	// the connection.
	Gaps(s cursor.Step) []byte
	Closing(s cursor.Step) []byte
	Heartbeat() []byte
	// Farewell returns the last block of a connection whose client is to reconnect.
	Farewell() []byte
}

// Companion goes with a connection from its beginning to its end. Its methods are called by the connection's worker.
// A connection without one has one that does nothing.
type Companion interface {
	// Begun is called when the worker has taken the connection, and Ended once the worker is done with
	// it, or could not take it.
	Begun()
	Ended(begun bool)
	// Told is called after the client received events of a step, and Moved when its cursor was
	// moved to that of another connection.
	Told(s cursor.Step, events int)
	Moved()
	// Tick is called at Due, unless that is zero.
	Due() time.Time
	Tick(now time.Time)
}

// NoCompanion is embedded by a companion that has nothing to do at most of these times.
type NoCompanion = noCompanion

type noCompanion struct{}

func (noCompanion) Begun()                 {}
func (noCompanion) Ended(bool)             {}
func (noCompanion) Told(cursor.Step, int)  {}
func (noCompanion) Moved()                 {}
func (noCompanion) Due() (never time.Time) { return never }
func (noCompanion) Tick(time.Time)         {}

// Beginning is where a connection begins.
type Beginning struct {
	Fresh    bool   // the client has no usable cursor
	Resumes  bool   // the client has one
	Position uint64 // of the cursor
	Read     bool   // the connection's step has been read
}

// Request is a request that was let in.
type Request struct {
	admission.Visit
	number uint64          // of the connection that it became; 0 for none
	Ctx    context.Context //nolint:containedctx // has the request's span, and does not end
	Begun  time.Time
}
