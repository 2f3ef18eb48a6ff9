package bucket

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

// Config is the stream of a bucket, to be made by [Ensure]. It is like that of CreateKeyValue, but without direct gets
// (ADR-31 of NATS): any server with a copy answers those, and an old answer may be a wrong one; and without roll-ups, by
// which the writer of one key could remove all.
func Config(bucket, description string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              streamName(bucket),
		Description:       description,
		Subjects:          []string{subject(bucket, ">")},
		MaxMsgsPerSubject: 1,
		Storage:           jetstream.FileStorage,
		Replicas:          max(replicas, 1),
		DenyDelete:        true,
		MaxConsumers:      100_000, // else 1,000 (docs/upstream/0010)
		Discard:           jetstream.DiscardNew,
	}
}

func streamName(bucket string) string { return "KV_" + bucket }

func subject(bucket, key string) string { return "$KV." + bucket + "." + key }

// Ensure opens a bucket, and makes it when it is missing. An existing bucket keeps its
// settings.
func Ensure(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (kv jetstream.KeyValue, err error) {
	name := strings.TrimPrefix(cfg.Name, streamName(""))
	err = natsconn.NewServer(js.Conn()).Repeat(ctx, func(ctx context.Context) error {
		kv, err = js.KeyValue(ctx, name)
		return err
	})
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	if _, err := js.CreateStream(ctx, cfg); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another caller was faster
		return nil, err
	}
	return js.KeyValue(ctx, name)
}

// Conflict reports whether a write was refused because its key has another revision, or
// has one at all. The client's own errors leave out a Create over a removed key of a bucket
// with replicas.
func Conflict(err error) bool {
	return natsconn.Code(err) == jetstream.JSErrCodeStreamWrongLastSequence || busy(err) // the latter with replicas
}
