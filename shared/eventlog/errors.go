package eventlog

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

var (
	// ErrNotFound is returned when the log, or an event of it, is not there.
	ErrNotFound = errors.New("not found in the log")

	// ErrMismatch is returned when the stored data is not a log of this program's
	// version and layout.
	ErrMismatch = errors.New("the stored log does not match")

	// errVersion is the [ErrMismatch] of a log of another version.
	errVersion = fmt.Errorf("%w", ErrMismatch)

	// ErrInvalidSettings is returned when a log's settings make no sense.
	ErrInvalidSettings = errors.New("invalid log settings")

	// ErrUnavailable is returned when the log could not be reached and nothing was done.
	ErrUnavailable = errors.New("the log cannot be reached")

	// ErrUnknown is returned when a publish got no answer: the message may be
	// stored now or later, or not.
	ErrUnknown = errors.New("the log did not answer")

	// ErrSeriesFailed is returned for an event of a [Series] after one that is not stored, or whose
	// outcome is unknown. It comes with [ErrUnavailable].
	ErrSeriesFailed = errors.New("an event before it in its series failed")

	// ErrClosed is returned for an event or a birth of a stream or session that has ended: JetStream
	// refused it because of its fence, and did not store it.
	ErrClosed = errors.New("the stream or session has ended")

	// ErrConflict is returned for a control entry that JetStream did not store because its subject
	// has another newest entry than the one that it was to follow, or has one at all (compare-and-set).
	ErrConflict = errors.New("another entry has the subject")

	// ErrExists is returned when a session that is to be opened has an opening already.
	ErrExists = errors.New("the session has an opening")

	// ErrFull is returned when the log refused an event, or cannot be created, for lack of space.
	ErrFull = errors.New("the log has no space left")

	// ErrTooLarge is returned when an event is larger than the log allows.
	ErrTooLarge = errors.New("the event is too large for the log")
)

// apiError translates an error of JetStream's API into this package's errors.
func apiError(err error) error {
	code := natsconn.Code(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case insufficient(code):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case code != 0 && !natsconn.Passes(err):
		return err
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// insufficient reports whether a JetStream error code means lack of space: memory
// (10028), storage (10047), resources (10023), account resources (10002), or a stream's bytes
// (10077, with a store failure).
func insufficient(code jetstream.ErrorCode) bool {
	switch code {
	case 10002, 10023, 10028, 10047, 10077:
		return true
	default:
		return false
	}
}

// publishError returns the error of an event whose publish failed. Unless the event
// was surely not stored, that is [ErrUnknown].
func publishError(err error) error {
	code := natsconn.Code(err)
	switch {
	case insufficient(code):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case code == 10054: // message size exceeds maximum allowed
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case fenced(err):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case code == 10158: // an event of that key is in process, in a cluster
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case code != 0:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		// nats.ErrConnectionClosed too: a request that waits for its answer gets it,
		// and publish does not come here on a connection that is closed already.
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
}

// JetStream's errors for a message with an expected sequence.
const (
	errorFence     jetstream.ErrorCode = 10071 // the subject has an entry
	errorFenceBusy jetstream.ErrorCode = 10164 // in a cluster: another message with the fence is in flight
)

// fenced reports whether JetStream refused a message because its fence has an entry. A
// failed look-up gives the same error with sequence 0, which proves nothing
// (docs/upstream/0016).
func fenced(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errorFence && !strings.HasSuffix(api.Description, ": 0")
}

// fenceBusy reports whether JetStream refused a message that may be sent again at once: it
// was surely not stored (docs/upstream/0015).
func fenceBusy(err error) bool { return natsconn.Code(err) == errorFenceBusy }
