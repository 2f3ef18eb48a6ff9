package eventlog

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// hidden reports whether a consumer of nats.go takes an entry for the server's own word
// and throws it away, so that nothing behind it comes either: it has a Status header and,
// as far as it is delivered, no data (docs/upstream/0005). A headers-only consumer delivers no
// entry with data, so there the header alone decides.
func hidden(msg *jetstream.RawStreamMsg, headersOnly bool) bool {
	return msg.Header.Get("Status") != "" && (headersOnly || len(msg.Data) == 0)
}

// passHidden hands over the hidden entry that comes first behind a sequence, and those
// that follow it, until handle returns false. It returns the first entry that is not
// hidden, or an error, which wraps [ErrNotFound] when there is none.
func (l *Log) passHidden(ctx context.Context, p int, filter string, after uint64, headersOnly bool, handle func(Entry) (more bool)) (*jetstream.RawStreamMsg, error) {
	for {
		msg, err := l.get(ctx, p, after+1, jetstream.WithGetMsgSubject(filter))
		if err != nil || !hidden(msg, headersOnly) {
			return msg, err
		}
		e := l.entryFromRaw(msg, p)
		if headersOnly {
			e.Data = nil
		}
		if !handle(e) {
			return msg, nil
		}
		after = msg.Sequence
	}
}
