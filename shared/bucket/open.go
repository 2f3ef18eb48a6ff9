package bucket

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Ensure opens a bucket, and makes it when it is missing. One that is there keeps its
// settings.
func Ensure(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, cfg.Bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	kv, err = js.CreateKeyValue(ctx, cfg)
	if errors.Is(err, jetstream.ErrBucketExists) { // somebody else was faster
		return js.KeyValue(ctx, cfg.Bucket)
	}
	return kv, err
}

// Conflict reports whether a write was refused because its key has another revision, or
// has one. The client's own errors leave out a Create over a removed key of a bucket with
// replicas.
func Conflict(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) // the latter with replicas
}

const (
	// busyEvery is how often a write is tried while another one of its key is under way.
	busyEvery = 5 * time.Millisecond
	// busyWithin bounds that.
	busyWithin = 5 * time.Second
)

// Settled does a write, and repeats it while it is refused only because another one of its
// key is under way, which says nothing of revisions. The leader of a bucket with replicas
// says so for a moment even when it has acknowledged the other one. It gives up after 5 s,
// or when ctx ends.
func Settled(ctx context.Context, write func() error) error {
	for deadline := time.Now().Add(busyWithin); ; {
		err := write()
		if !busy(err) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyEvery):
		}
	}
}

func busy(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}
