package bucket

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

// Ensure opens a bucket, and makes it when it is missing. One that is there keeps its
// settings.
func Ensure(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	var kv jetstream.KeyValue
	err := natsconn.NewServer(js.Conn()).Repeat(ctx, func(ctx context.Context) (err error) {
		kv, err = js.KeyValue(ctx, cfg.Bucket)
		return err
	})
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
