package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
	kv  jetstream.KeyValue
	log *slog.Logger

	mu      sync.RWMutex
	records map[string]Record

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
	r := &Registry{nc: nc, log: log, records: map[string]Record{}}
	for {
		if r.kv, err = js.KeyValue(ctx, Bucket); err == nil {
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
	rec, ok := r.records[k]
	return rec, ok
}

// Sessions returns the copies of all records, of sessions and of streams, in no order.
func (r *Registry) Sessions() []Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]Record, 0, len(r.records))
	for _, rec := range r.records {
		all = append(all, rec)
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

// Create stores a new record. Errors wrap [ErrExists] or [ErrUnavailable].
func (r *Registry) Create(ctx context.Context, rec Record) (Record, error) {
	data, err := json.Marshal(rec)
	if err != nil {
		return Record{}, err
	}
	k := key(rec.Session, rec.Stream)
	rec.Revision, err = r.kv.Create(ctx, k, data)
	if errors.Is(err, jetstream.ErrKeyExists) {
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
			rec, err = r.Get(ctx, name, "")
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
	k := key(rec.Session, rec.Stream)
	err := r.kv.Purge(ctx, k, jetstream.LastRevision(rec.Revision), jetstream.PurgeTTL(markerTTL))
	return casError(err)
}

// put copies a record unless the copy is newer.
func (r *Registry) put(k string, rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.records[k]; !ok || old.Revision < rec.Revision {
		r.records[k] = rec
	}
}

// follow copies the bucket until ctx ends. It begins again after every
// reconnection: a watch that lost its server notices that only seconds later.
func (r *Registry) follow(ctx context.Context, copied func()) {
	connected := r.nc.StatusChanged(nats.CONNECTED)
	defer r.nc.RemoveStatusListener(connected)
	for ctx.Err() == nil {
		if err := r.followOnce(ctx, connected, copied); err != nil && ctx.Err() == nil {
			r.log.Warn("cannot follow the session registry", "error", err)
			select {
			case <-ctx.Done():
			case <-connected:
			case <-time.After(retryEvery):
			}
		}
	}
}

func (r *Registry) followOnce(ctx context.Context, connected <-chan nats.Status, copied func()) error {
	watcher, err := r.kv.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Stop() }()
	fresh := map[string]bool{} // keys seen in the first pass; nil afterwards
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-connected:
			return nil
		case entry, ok := <-watcher.Updates():
			switch {
			case !ok:
				return errors.New("the watch ended")
			case entry == nil:
				r.keep(fresh)
				fresh = nil
				copied()
			default:
				if fresh != nil {
					fresh[entry.Key()] = true
				}
				r.apply(entry)
			}
		}
	}
}

func (r *Registry) apply(entry jetstream.KeyValueEntry) {
	if entry.Operation() != jetstream.KeyValuePut {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.records, entry.Key())
		return
	}
	rec, err := decode(entry.Key(), entry.Value(), entry.Revision())
	if err != nil {
		r.log.Warn("a session record is ignored", "error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records[entry.Key()] = rec
}

// keep drops what a new first pass did not show: it was removed meanwhile, or the
// bucket is an older copy of itself.
func (r *Registry) keep(fresh map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.records {
		if !fresh[k] {
			delete(r.records, k)
		}
	}
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

func casError(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		return fmt.Errorf("%w: %w", ErrConflict, err)
	default:
		return unavailable(err)
	}
}
