package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/link"
)

// Bucket is the name of the key-value bucket.
const Bucket = "MCP_SESSIONS"

const (
	requestTimeout = 5 * time.Second
	retryEvery     = 200 * time.Millisecond
	// markerTTL is how long the bucket keeps the marker of a removed record.
	markerTTL = time.Hour
)

// Registry is the open registry.
//
//	Create, Open ──▶ Registry ──starts──▶ follow: one goroutine, copies the
//	                    │                 bucket's changes, ends in Close
//	                    ├─ Session, Stream        the copy in memory
//	                    └─ Get, Create, Update, … the bucket's leader
type Registry struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	kv  jetstream.KeyValue
	log *slog.Logger

	mu      sync.RWMutex
	copy    *bucketCopy
	next    *bucketCopy   // what a new watch has shown so far; nil once it is the copy
	on      uint64        // the connection that copy follows the bucket on, or nowhere
	changed chan struct{} // closed and replaced when on is set

	stop     context.CancelFunc
	followed sync.WaitGroup
}

// Create makes the bucket if it is missing, and opens the registry. The service
// that creates the log creates the bucket too.
func Create(ctx context.Context, nc *nats.Conn, replicas int, log *slog.Logger) (*Registry, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return nil, err
	}
	// The bucket is a stream like CreateKeyValue makes one, but without direct
	// gets: any replica answers those, and an old answer here is a wrong one.
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:                   "KV_" + Bucket,
		Description:            "Rejoin session registry",
		Subjects:               []string{"$KV." + Bucket + ".>"},
		MaxMsgsPerSubject:      1,
		Storage:                jetstream.FileStorage,
		Replicas:               max(replicas, 1),
		AllowRollup:            true,
		DenyDelete:             true,
		Duplicates:             2 * time.Minute,
		MaxMsgs:                -1,
		MaxBytes:               -1,
		MaxConsumers:           100_000,
		Discard:                jetstream.DiscardNew,
		AllowMsgTTL:            true,
		SubjectDeleteMarkerTTL: markerTTL,
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil, unavailable(err)
	}
	return OpenRegistry(ctx, nc, log)
}

// OpenRegistry opens the registry, and waits until its bucket exists and is copied
// or ctx ends; the error then wraps ctx's.
func OpenRegistry(ctx context.Context, nc *nats.Conn, log *slog.Logger) (*Registry, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return nil, err
	}
	r := &Registry{nc: nc, js: js, log: log, copy: newBucketCopy(), on: nowhere, changed: make(chan struct{})}
	for {
		kv, err := js.KeyValue(ctx, Bucket)
		if err == nil {
			r.kv = bucket.Patient(kv)
			break
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the session registry is not there (%w): %w", err, ctx.Err())
		case <-time.After(retryEvery):
		}
	}
	followCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	copied := make(chan struct{})
	r.followed.Go(func() { r.follow(followCtx, sync.OnceFunc(func() { close(copied) })) })
	select {
	case <-copied:
		return r, nil
	case <-ctx.Done():
		r.Close()
		return nil, fmt.Errorf("the session registry is not copied: %w", ctx.Err())
	}
}

// Close ends the following of the bucket. It does not close the connection.
func (r *Registry) Close() {
	r.stop()
	r.followed.Wait()
}

// Session returns the copy of a session's record.
func (r *Registry) Session(name string) (Record, bool) { return r.cached(key(name, "")) }

// Stream returns the copy of a closing or closed stream's record.
func (r *Registry) Stream(name, stream string) (Record, bool) { return r.cached(key(name, stream)) }

func (r *Registry) cached(k string) (Record, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rec, ok := r.copy.records[k]
	return rec, ok
}

// Sessions returns the copies of all records, of sessions and of streams, in no order.
func (r *Registry) Sessions() []Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.AppendSeq(make([]Record, 0, len(r.copy.records)), maps.Values(r.copy.records))
}

// Of returns the copies of the records of a session and of its streams, in no order. It
// looks at all records.
func (r *Registry) Of(name string) (all []Record) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, rec := range r.copy.records {
		if rec.Session == name {
			all = append(all, rec)
		}
	}
	return all
}

// CheckOpen returns an error that wraps [ErrClosed] when the copy says that the
// session or the stream takes no more messages.
func (r *Registry) CheckOpen(name, stream string) error {
	if rec, ok := r.Session(name); ok && rec.State != Open {
		return fmt.Errorf("%w: session %s", ErrClosed, name)
	}
	if rec, ok := r.Stream(name, stream); ok && rec.State != Open {
		return fmt.Errorf("%w: stream %s", ErrClosed, stream)
	}
	return nil
}

// Get asks the bucket's leader for a session's record, or a stream's when stream
// is not empty. Errors wrap [ErrNotFound] or [ErrUnavailable].
func (r *Registry) Get(ctx context.Context, name, stream string) (Record, error) {
	ctx, done := link.While(ctx, r.nc)
	defer done()
	k := key(name, stream)
	entry, err := r.kv.Get(ctx, k)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Record{}, ErrNotFound
	}
	if err != nil {
		return Record{}, unavailable(err)
	}
	return decode(k, entry.Value(), entry.Revision())
}

// Learn returns the copy of a session's record, and asks the bucket's leader when
// there is none: the copy may be a moment behind what was just written. Errors are
// those of [Registry.Get].
func (r *Registry) Learn(ctx context.Context, name string) (Record, error) {
	if rec, ok := r.Session(name); ok {
		return rec, nil
	}
	rec, err := r.Get(ctx, name, "")
	if err == nil {
		r.put(key(name, ""), rec)
	}
	return rec, err
}

// Create stores a new record. Errors wrap [ErrExists] or [ErrUnavailable].
func (r *Registry) Create(ctx context.Context, rec Record) (Record, error) {
	data, err := json.Marshal(rec)
	if err != nil {
		return Record{}, err
	}
	ctx, done := link.While(ctx, r.nc)
	defer done()
	k := key(rec.Session, rec.Stream)
	rec.Revision, err = r.kv.Create(ctx, k, data)
	if bucket.Conflict(err) {
		return Record{}, ErrExists
	}
	if err != nil {
		return Record{}, unavailable(err)
	}
	r.put(k, rec)
	return rec, nil
}

// Register returns the session's record, and creates it when there is none: a
// session is registered on first use. Errors wrap [ErrClosed] when the session is
// not open, or [ErrUnavailable].
func (r *Registry) Register(ctx context.Context, name, owner string) (Record, error) {
	rec, ok := r.Session(name)
	if !ok {
		var err error
		rec, err = r.Create(ctx, New(name, owner, nil, time.Now()))
		if errors.Is(err, ErrExists) {
			if rec, err = r.Get(ctx, name, ""); errors.Is(err, ErrNotFound) {
				err = fmt.Errorf("%w: session %s was removed at this moment", ErrUnavailable, name)
			}
		}
		if err != nil {
			return Record{}, err
		}
	}
	if rec.State != Open {
		return rec, fmt.Errorf("%w: session %s", ErrClosed, name)
	}
	return rec, nil
}

// Update stores a changed record over the revision that it was read at. Errors
// wrap [ErrConflict] or [ErrUnavailable].
func (r *Registry) Update(ctx context.Context, rec Record) (Record, error) {
	data, err := json.Marshal(rec)
	if err != nil {
		return Record{}, err
	}
	ctx, done := link.While(ctx, r.nc)
	defer done()
	k := key(rec.Session, rec.Stream)
	rec.Revision, err = r.kv.Update(ctx, k, data, rec.Revision)
	if err != nil {
		return Record{}, casError(err)
	}
	r.put(k, rec)
	return rec, nil
}

// Remove deletes a record that has not changed since it was read. Errors wrap
// [ErrConflict] or [ErrUnavailable].
func (r *Registry) Remove(ctx context.Context, rec Record) error {
	ctx, done := link.While(ctx, r.nc)
	defer done()
	k := key(rec.Session, rec.Stream)
	err := r.kv.Purge(ctx, k, jetstream.LastRevision(rec.Revision), jetstream.PurgeTTL(markerTTL))
	return casError(err)
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

func casError(err error) error {
	switch {
	case err == nil:
		return nil
	case bucket.Conflict(err):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	default:
		return unavailable(err)
	}
}
