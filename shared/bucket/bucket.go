// Package bucket follows a JetStream key-value bucket.
package bucket

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/link"
)

// Entry is what a key holds, or that it was removed.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	Removed  bool
}

// Follow calls show for what each key holds now, then whole once, then show for every
// change, all one after the other, until ctx ends or the connection is lost. It returns
// why it ended: the cause of its context, or what JetStream said.
//
// The key-value client's own watch waits up to 5 s, when it is stopped, for an answer
// that a lost connection never brings.
func Follow(ctx context.Context, js jetstream.JetStream, bucket string, show func(Entry), whole func()) error {
	ctx, done := link.While(ctx, js.Conn())
	defer done()
	prefix := "$KV." + bucket + "."
	reader, err := link.NewReader(ctx, js, "KV_"+bucket, link.ReaderConfig{Filter: prefix + ">", Latest: true})
	if err != nil {
		return err
	}
	defer func() { _ = reader.Stop() }() // the server forgets it by itself
	left := reader.Pending
	if left == 0 {
		whole()
	}
	err = reader.Start(func(msg jetstream.Msg, meta *jetstream.MsgMetadata) {
		show(Entry{
			Key: strings.TrimPrefix(msg.Subject(), prefix), Value: msg.Data(), Revision: meta.Sequence.Stream,
			Removed: removed(msg),
		})
		if left > 0 {
			// Keys that changed meanwhile come once, behind the others.
			if left = min(left-1, meta.NumPending); left == 0 {
				whole()
			}
		}
	})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-reader.Broken():
		return err
	}
}

// removed reports whether a message says that its key was deleted, was purged, or has
// outlived its time (ADR-8 and ADR-43 of NATS).
func removed(msg jetstream.Msg) bool {
	h := msg.Headers()
	return h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}
