package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/natsconn"
)

// current returns how many of the servers that hold a stream have all of it, the leader
// included, and whether they are as many as the stream should have.
func current(info *jetstream.StreamInfo) (n int, whole bool) {
	if info.Cluster == nil {
		return 1, info.Config.Replicas == 1
	}
	held := 1 + len(info.Cluster.Replicas)
	for _, r := range info.Cluster.Replicas {
		if r.Current && !r.Offline {
			n++
		}
	}
	if info.Cluster.Leader != "" {
		n++
	}
	return n, n == held && held == max(info.Config.Replicas, 1)
}

const (
	// currentWithin bounds how long new replicas are waited for: JetStream copies what
	// there is to them while everything runs.
	currentWithin = 4 * time.Minute
	currentEvery  = 100 * time.Millisecond
)

// waitCurrent waits until all replicas of a stream have all of it. The error wraps
// [ErrUnavailable].
func (l *Log) waitCurrent(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, currentWithin)
	defer cancel()
	for {
		var n int
		stream, err := l.js.Stream(ctx, name)
		if err == nil {
			var whole bool
			if n, whole = current(stream.CachedInfo()); whole {
				return nil
			}
		}
		if !natsconn.Pause(ctx, currentEvery) {
			return errors.Join(fmt.Errorf("%w: %d replicas of %s are current yet", ErrUnavailable, n, name), err)
		}
	}
}

// SetReplicas gives the JetStream stream of a bucket a number of replicas and waits until
// they are current; a bucket that does not exist is left out. Errors are those of
// [Log.SetLimits].
func (l *Log) SetReplicas(ctx context.Context, bucket string, replicas int) error {
	name := "KV_" + bucket
	stream, err := l.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return apiError(err)
	}
	cfg := stream.CachedInfo().Config
	if cfg.Replicas == replicas {
		return nil
	}
	cfg.Replicas, cfg.Metadata = replicas, foreignMetadata(cfg.Metadata)
	if err := l.update(ctx, cfg); err != nil {
		return err
	}
	return l.waitCurrent(ctx, name)
}
