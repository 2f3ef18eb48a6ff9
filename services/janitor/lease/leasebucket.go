package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/natsconn"
)

// holder is the value of the lease's key.
type holder struct {
	ID   string `json:"id"`
	Host string `json:"host,omitempty"`
}

// holderSubject is where the janitor with an ID answers as long as it is connected.
func holderSubject(id string) string { return "mcp.janitor.alive." + id }

// open makes the bucket if it is missing. An existing one says how long the lease is.
func (l *Lease) open(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.state.lease/renewShare)
	defer cancel()
	kv, err := bucket.Ensure(ctx, l.js, jetstream.KeyValueConfig{
		Bucket: Bucket, Description: "Rejoin: which janitor acts",
		TTL: l.state.lease, Storage: jetstream.MemoryStorage, Replicas: l.replicas,
	})
	if err == nil {
		err = l.adopt(ctx, kv)
	}
	if err != nil {
		l.complain(ctx, "cannot open the bucket of the lease", err)
		return false
	}
	l.kv = kv
	return true
}

// complain logs the first trouble of a connection.
func (l *Lease) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && !l.complained {
		l.complained = true
		l.logger.Warn(what, "error", err) //nolint:sloglint // one of two constants
	}
}

// adopt takes the lease's length from the bucket.
func (l *Lease) adopt(ctx context.Context, kv jetstream.KeyValue) error {
	status, err := kv.Status(ctx)
	if err != nil {
		return err
	}
	ttl := status.TTL()
	if ttl <= 0 {
		return fmt.Errorf("the bucket %s keeps leases without limit", Bucket)
	}
	if ttl != l.state.lease {
		l.logger.Warn("the lease has another length already, and keeps it", "flag", "--lease", "given", l.state.lease.String(), "lease", ttl.String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.lease = ttl
	return nil
}

// try does a write.
func (l *Lease) try(ctx context.Context, w write) outcome {
	ctx, cancel := context.WithTimeout(ctx, l.state.lease/waitShare)
	defer cancel()
	host, _ := os.Hostname() // for people only
	value, err := json.Marshal(holder{l.state.id, host})
	if err != nil {
		return outcome{result: unknown}
	}
	var revision uint64
	if w.revision == 0 {
		revision, err = l.kv.Create(ctx, Key, value)
	} else {
		revision, err = l.kv.Update(ctx, Key, value, w.revision)
	}
	if err == nil {
		return outcome{result: written, revision: revision}
	}
	if !bucket.Conflict(err) {
		l.complain(ctx, "cannot write the lease", err)
		return outcome{result: unknown}
	}
	return l.read(ctx)
}

// read says who has the lease.
func (l *Lease) read(ctx context.Context) outcome {
	entry, err := l.kv.Get(ctx, Key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return outcome{result: taken}
	}
	if err != nil {
		return outcome{result: unknown}
	}
	var h holder
	if err := json.Unmarshal(entry.Value(), &h); err != nil || h.ID == "" {
		return outcome{result: taken, revision: entry.Revision(), holder: "unknown"}
	}
	o := outcome{result: taken, revision: entry.Revision(), holder: h.ID}
	if h.ID != l.state.id {
		o.gone = l.gone(ctx, h.ID)
	}
	return o
}

// gone reports whether a janitor has surely lost its connection to the only server that
// there is, so that nothing it does has any effect before it connects again, and then
// it does not hold the lease any more.
func (l *Lease) gone(ctx context.Context, id string) bool {
	if l.nc.ConnectedClusterName() != "" {
		return false
	}
	_, err := l.nc.RequestWithContext(ctx, holderSubject(id), nil)
	return errors.Is(err, nats.ErrNoResponders)
}

// follow notices that the lease is released, until ctx ends. When it ends before, time
// alone tells.
func (l *Lease) follow(ctx context.Context) {
	_ = bucket.Follow(ctx, l.js, Bucket, func(e bucket.Entry) {
		if e.Removed && e.Key == Key {
			select {
			case l.freed <- struct{}{}:
			default:
			}
		}
	}, func() {})
}

// releaseWithin bounds the release of the lease.
const releaseWithin = time.Second

// release gives the lease back, so that another one need not wait for it to run out.
func (l *Lease) release(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	ctx, done := natsconn.While(ctx, l.nc)
	defer done()
	if err := l.kv.Delete(ctx, Key, jetstream.LastRevision(revision)); err != nil {
		l.logger.Info("the lease was not released, and will run out", "error", err)
	}
}
