package session

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/natsconn"
)

// bucketCopy is a copy of the bucket, fed by a watch, and by the records that this process
// writes, which the watch shows only later. The registry's lock guards it.
type bucketCopy struct {
	records map[string]Record // by key; changed by set and remove alone
	all     Usage             // of all records
	holders map[Holder]*holding
	through uint64 // the newest revision that the watch has shown
	bare    bool   // without metadata; see [WithoutMetadata]
	// kept says of which partitions it has records; empty: of all. partition returns that of a name.
	kept      []bool
	partition func(name string) int
}

func newBucketCopy(bare bool) *bucketCopy {
	return &bucketCopy{records: map[string]Record{}, holders: map[Holder]*holding{}, bare: bare}
}

// newCopy returns an empty copy of the kept partitions. The caller holds mu, or is alone.
func (r *Registry) newCopy() *bucketCopy {
	c := newBucketCopy(r.bare)
	c.kept, c.partition = r.kept, r.events.Partition
	return c
}

// has reports whether it has the records of a partition.
func (c *bucketCopy) has(partition int) bool { return len(c.kept) == 0 || c.kept[partition] }

// errKept ends a watch when other records are to be kept.
var errKept = errors.New("other records are kept from now on")

// Keep has the copy hold the records of some partitions only, for a service that serves those
// alone. It begins a new copy, and the previous one serves until that is complete: see
// [Registry.Has]. Then copied is called, which must not wait, unless Keep was called again.
// Without a call the copy holds all.
func (r *Registry) Keep(partitions []bool, copied func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(r.kept, partitions) {
		return
	}
	r.kept, r.copied = slices.Clone(partitions), copied
	if r.again != nil {
		r.again()
	}
}

// Has reports whether the copy has the records of a partition, and continues to follow it.
func (r *Registry) Has(partition int) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.copy.has(partition) && (len(r.kept) == 0 || r.kept[partition])
}

// put takes a record that was just written, unless the watch is past it already:
// then the copy has the record, or it has been replaced or removed since.
func (c *bucketCopy) put(k string, rec Record) {
	old := c.records[k].Revision
	if rec.Revision > c.through && rec.Revision > old || rec.Revision == old && rec.Client != "" {
		c.set(k, rec)
	}
}

// show takes a record from the watch; removed says that the key is deleted. A record
// that was put is newer than the pending records of the watch for its key.
func (c *bucketCopy) show(k string, rec Record, removed bool) {
	c.through = max(c.through, rec.Revision)
	switch {
	case c.records[k].Revision > rec.Revision:
	case removed:
		c.remove(k)
	default:
		c.set(k, rec)
	}
}

// correct takes the log's version of a record that the bucket has at the same revision, or
// does not have.
func (r *Registry) correct(k string, rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.copy.records[k].Revision <= rec.Revision {
		r.copy.set(k, rec)
	}
}

func (r *Registry) put(k string, rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copy.put(k, rec)
	if r.next != nil {
		r.next.put(k, rec)
	}
}

// follow copies the bucket until ctx ends. It begins again after every reconnection.
func (r *Registry) follow(ctx context.Context, copied func()) {
	for ctx.Err() == nil {
		err := r.followOnce(ctx, copied)
		if ctx.Err() != nil || errors.Is(err, natsconn.ErrChanged) || errors.Is(err, errKept) {
			continue
		}
		if r.creator && errors.Is(err, jetstream.ErrStreamNotFound) {
			natsconn.AwaitDeletion(ctx)
			if err = createBucket(ctx, r.js, r.events); err == nil {
				r.log.Error("the session registry is missing; it is created again")
				continue
			}
		}
		if err != nil && r.nc.IsConnected() {
			r.trouble.Note(ctx, err.Error(), "cannot follow the session registry", slog.Any("error", err))
		}
		r.pause(ctx)
	}
}

// pause waits for a moment, or for a connection.
func (r *Registry) pause(ctx context.Context) {
	ctx, done := natsconn.While(ctx, r.nc)
	defer done()
	natsconn.Pause(ctx, retryEvery)
}

func (r *Registry) followOnce(ctx context.Context, copied func()) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// A new watch builds a new copy: a record that it does not show was removed meanwhile, or
	// the bucket is an older copy of itself. The old copy serves until then.
	r.mu.Lock()
	r.next, r.again = r.newCopy(), func() { end(errKept) }
	r.mu.Unlock()
	err := bucket.Follow(ctx, r.js, Bucket, r.show, func() {
		r.swap()
		copied()
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = r.newCopy() // the copy is followed no more
	return err
}

// swap replaces the copy by the one that the watch has filled.
func (r *Registry) swap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copy, r.next = r.next, nil
	if r.copied != nil && slices.Equal(r.copy.kept, r.kept) {
		r.copied()
		r.copied = nil
	}
}

func (r *Registry) show(entry bucket.Entry) {
	rec := Record{Revision: entry.Revision}
	if !entry.Removed {
		var err error
		if rec, err = decode(entry.Key, entry.Value, entry.Revision); err != nil {
			r.log.Warn("a session record is ignored", "error", err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.copy
	if r.next != nil {
		c = r.next
		if before := r.copy.records[entry.Key]; before.Life == rec.Life {
			rec.Client = before.Client
		}
	}
	c.show(entry.Key, rec, entry.Removed)
}
