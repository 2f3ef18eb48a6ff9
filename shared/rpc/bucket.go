package rpc

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
)

// The key-value buckets of MCP. Besides the services that keep them, the janitor knows them: it
// creates them, and changes their replicas with the log's.
const (
	// AttachBucket is the edges': the edge that has the newest connection of a stream.
	AttachBucket = "MCP_ATTACH"
	// CallsBucket is the bridges': open calls, and how far their streams are.
	CallsBucket = "MCP_CALLS"
)

// maxBytes bounds each bucket: clients decide how many streams are resumed, and how many tasks MCP servers make. A full
// bucket takes a record that replaces one of the same size.
const maxBytes = 256 << 20

// AttachConfig is how [AttachBucket] is created, by the janitor or again by an edge. A record is kept for an hour.
func AttachConfig(replicas int) jetstream.StreamConfig {
	cfg := bucket.Config(AttachBucket, "Which edge has the newest connection of a stream of MCP", replicas)
	cfg.MaxAge, cfg.MaxBytes = time.Hour, maxBytes
	return cfg
}

// CallsConfig is how [CallsBucket] is created, by the janitor or again by a bridge. The markers of removed records need
// roll-ups. Expired records leave no markers: JetStream would store one that is larger than a note, for which a full
// bucket never has room, and keep the note.
func CallsConfig(replicas int) jetstream.StreamConfig {
	cfg := bucket.Config(CallsBucket, "Rejoin: calls that bridges work on", replicas)
	cfg.AllowMsgTTL, cfg.AllowRollup, cfg.MaxBytes = true, true, maxBytes
	return cfg
}

// CreateBuckets creates those of the buckets that are missing. The janitor does, with the
// log: a user that may create a stream may have it write to any subject, so the NATS users of
// edges and bridges may not. The buckets are on disk, so that they outlive a restart of NATS.
func CreateBuckets(ctx context.Context, nc *nats.Conn, replicas int) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for _, cfg := range []jetstream.StreamConfig{AttachConfig(replicas), CallsConfig(replicas)} {
		if _, err := bucket.Ensure(ctx, js, cfg); err != nil {
			return fmt.Errorf("cannot create the bucket %s: %w", cfg.Name, err)
		}
	}
	return nil
}
