package eventlog

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/natsconn"
)

// A fence is a subject that must have no entry: JetStream checks that atomically with the
// store (headers Nats-Expected-Last-Subject-Sequence and …-Subject). It names one literal
// subject, since in a cluster the leader knows what it has proposed and not yet applied by
// exact subject only, and it expects no entry, since to look at one in an old block would
// load that block with every publish.

// fence returns the subject that must be empty for the event to be stored.
func (e Event) fence(p int) event.Subject {
	if e.Sole {
		return event.Subject{Partition: p, Session: e.Session, Life: e.Life, Kind: event.Seal}
	}
	return event.Subject{Partition: p, Session: e.Session, Life: e.Life, Stream: e.Stream, Kind: event.End}
}

func setFence(msg *nats.Msg, on []string) {
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = noEntry
	msg.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = on
}

// noEntry is the sequence that a subject without an entry has.
var noEntry = []string{"0"}

// JetStream's errors for a message with an expected sequence.
const (
	errorFence     jetstream.ErrorCode = 10071 // the subject has an entry
	errorFenceBusy jetstream.ErrorCode = 10164 // in a cluster: another message with the fence is on its way
)

// fenced reports whether JetStream refused a message because its fence has an entry. A
// look-up that failed looks the same, but names sequence 0, and says nothing
// (docs/upstream/0016).
func fenced(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errorFence && !strings.HasSuffix(api.Description, ": 0")
}

// fenceBusy reports whether JetStream refused a message that may be sent again at once: it
// was surely not stored (docs/upstream/0015).
func fenceBusy(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errorFenceBusy
}

// longestPause is how long a message waits at most before it is sent again: about as long
// as a majority takes to store the one before it.
const longestPause = 4 * time.Millisecond

// pause waits for a moment, and reports whether ctx is not done.
func pause(ctx context.Context) bool {
	return natsconn.Pause(ctx, rand.N(longestPause)) //nolint:gosec // no secret
}
