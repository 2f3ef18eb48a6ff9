package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/eventlog"
	"rejoin/shared/logrepeat"
	"rejoin/shared/natsconn"
)

// Bucket is the name of the key-value bucket.
const Bucket = "MCP_SESSIONS"

const (
	requestTimeout = 5 * time.Second
	retryEvery     = 200 * time.Millisecond
	// markerTTL is how long the bucket keeps the marker of a removed record.
	markerTTL = time.Hour
)

// Registry is the open registry. It is safe for concurrent use.
//
//	Create, OpenRegistry ──▶ Registry ──starts──▶ follow: one goroutine, copies the
//	                            │                 bucket's changes, ends in Close
//	                            ├─ Session, Sessions  the copy in memory
//	                            └─ all others         the bucket and the log; the log decides
type Registry struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	bucket jetstream.Stream // the stream below kv
	events *eventlog.Log
	log    *slog.Logger
	// trouble logs that the bucket cannot be followed, which is tried again soon.
	trouble *logrepeat.Log

	readOnly bool // see [Registry.ReadOnly]
	creator  bool // it creates the bucket again when that is deleted
	bare     bool // see [WithoutMetadata]

	mu   sync.RWMutex
	copy *bucketCopy
	next *bucketCopy // the copy that a new watch fills; nil while copy is followed
	// kept and copied are those of [Registry.Keep]; empty: all.
	kept   []bool
	copied func()
	again  func() // ends the watch, so that another one begins

	stop     context.CancelFunc
	followed sync.WaitGroup
}

// Create creates the bucket if it is missing, and opens the registry. The service
// that creates the log creates the bucket too.
func Create(ctx context.Context, events *eventlog.Log, log *slog.Logger, opts ...Option) (*Registry, error) {
	return open(ctx, events, log, true, opts...)
}

// createBucket creates the bucket if it is missing. The error wraps [ErrUnavailable].
func createBucket(ctx context.Context, js jetstream.JetStream, events *eventlog.Log) error {
	cfg := bucket.Config(Bucket, "Rejoin session registry", events.Settings().Replicas)
	cfg.AllowMsgTTL = true // markers of the server's would need roll-ups
	if _, err := bucket.Ensure(ctx, js, cfg); err != nil {
		return unavailable(err)
	}
	return nil
}

// Option changes how a registry is opened.
type Option func(*Registry)

// WithoutMetadata keeps the metadata of sessions out of the copy in memory, for a service that
// has no use for it: up to 16 KB for each session, and more where characters are escaped.
// [Registry.Get] returns it all the same, and [Registry.Create].
func WithoutMetadata() Option { return func(r *Registry) { r.bare = true } }

// ByPartition has the copy in memory hold no records until [Registry.Keep] names the
// partitions.
func ByPartition() Option {
	return func(r *Registry) { r.kept = make([]bool, r.events.Settings().Partitions) }
}

// OpenRegistry opens the registry of a log, and waits until its bucket exists and is
// copied or ctx ends; the error then wraps ctx's. The log must stay open for longer.
func OpenRegistry(ctx context.Context, events *eventlog.Log, log *slog.Logger, opts ...Option) (*Registry, error) {
	return open(ctx, events, log, false, opts...)
}

func open(ctx context.Context, events *eventlog.Log, log *slog.Logger, creator bool, opts ...Option) (*Registry, error) {
	nc := events.Conn()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err == nil && creator {
		err = createBucket(ctx, js, events)
	}
	if err != nil {
		return nil, err
	}
	r := &Registry{nc: nc, js: js, events: events, log: log, trouble: logrepeat.New(log), creator: creator}
	for _, opt := range opts {
		opt(r)
	}
	r.copy = r.newCopy()
	for {
		kv, err := js.KeyValue(ctx, Bucket)
		if err == nil {
			r.bucket, err = js.Stream(ctx, "KV_"+Bucket)
		}
		if err == nil {
			r.kv = bucket.Patient(nc, kv)
			break
		}
		if !natsconn.Pause(ctx, retryEvery) {
			return nil, fmt.Errorf("the session registry is not there (%w): %w", err, ctx.Err())
		}
	}
	events.AskRegistry(r.openLife)
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

// Close stops following the bucket. It does not close the connection.
func (r *Registry) Close() {
	r.stop()
	r.followed.Wait()
}

// ReadOnly makes the registry leave its records to other services. It is for a service whose
// NATS user may not write the bucket: NATS does not answer a request that it refuses, so each
// attempt would wait for its time-out. It must be called before any other method.
func (r *Registry) ReadOnly() { r.readOnly = true }

// Session returns the copy of a session's record. It may be older than the log, or newer
// than a log that was rolled back.
func (r *Registry) Session(name string) (Record, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	rec, ok := r.copy.records[key(name)]
	return rec, ok
}

// Names returns the names of all records that the copy has, in no order. The copy is locked
// meanwhile: the body of a loop over them may not wait.
func (r *Registry) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		r.mu.RLock()
		defer r.mu.RUnlock()
		for _, rec := range r.copy.records {
			if !yield(rec.Session) {
				return
			}
		}
	}
}

// Sessions returns the copies of all records, in no order.
func (r *Registry) Sessions() []Record {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.AppendSeq(make([]Record, 0, len(r.copy.records)), maps.Values(r.copy.records))
}

// Matching returns the copies of up to most records that match, in no order. match may not wait. The error
// wraps [ErrUnavailable]: from the end of a watch until the next one has filled another copy, this one may lack
// sessions that were opened long ago.
func (r *Registry) Matching(most int, match func(Record) bool) (all []Record, _ error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.next != nil {
		return nil, fmt.Errorf("%w: the records are being copied again", ErrUnavailable)
	}
	for _, rec := range r.copy.records {
		if len(all) >= most {
			break
		}
		if match(rec) {
			all = append(all, rec)
		}
	}
	return all, nil
}

// Get asks the log for a session, and the registry for one whose opening the log does not
// hold any more. A registry that differs is corrected. Errors wrap [ErrNotFound] or
// [ErrUnavailable].
func (r *Registry) Get(ctx context.Context, name string) (Record, error) {
	f, err := r.find(ctx, name)
	if err != nil {
		return Record{}, err
	}
	return r.judge(ctx, f)
}

// found has a session's record and opening from the registry and the log.
type found struct {
	name       string
	registered Record            // without a name when the registry has no record
	opening    *eventlog.Opening // nil when the log has no opening
}

// find takes two requests, whether or not there is such a session.
func (r *Registry) find(ctx context.Context, name string) (f found, err error) {
	f.name = name
	if f.registered, err = r.registered(ctx, name); err != nil {
		return f, err
	}
	o, err := r.events.Opening(ctx, name)
	switch {
	case err == nil:
		f.opening = &o
	case !errors.Is(err, eventlog.ErrNotFound):
		return f, unavailable(err)
	}
	return f, nil
}

// judge returns the record of a found session, and corrects the registry. Of a session whose
// opening the log does not hold any more the registry has the owner, and the log may still
// have the end. A life that the registry has as ended was ended in the log before: a log
// that was rolled back to before that gets the end again.
func (r *Registry) judge(ctx context.Context, f found) (Record, error) {
	rec := f.registered
	switch {
	case f.opening != nil:
		rec = fromLog(*f.opening)
	case rec.Session == "":
		return Record{}, ErrNotFound
	case rec.State != Open:
		return rec, nil
	}
	at, sealed, err := r.events.Sealed(ctx, f.name, rec.Life)
	if err != nil {
		return Record{}, unavailable(err)
	}
	switch {
	case sealed:
		rec.State, rec.Ended = Closed, at.UTC()
	case f.registered.State == Closed && f.registered.Life == rec.Life:
		if !r.readOnly {
			err = r.events.EndSession(ctx, f.name, rec.Life)
		}
		if err != nil {
			return Record{}, unavailable(err)
		}
		rec.State, rec.Ended = Closed, f.registered.Ended
	}
	return r.register(ctx, rec, f.registered), nil
}

// registered asks the bucket's leader for a record, which has no name when the bucket has no
// record, or one that cannot be read: then it has a revision, and is overwritten.
func (r *Registry) registered(ctx context.Context, name string) (Record, error) {
	k := key(name)
	entry, err := r.kv.Get(ctx, k)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return Record{}, nil
	case err != nil:
		return Record{}, unavailable(err)
	}
	rec, err := decode(k, entry.Value(), entry.Revision())
	if err != nil {
		return Record{Revision: entry.Revision()}, nil //nolint:nilerr // see above
	}
	return rec, nil
}

// openLife returns the life of a session that is open by the bucket's leader; empty when it is not open.
func (r *Registry) openLife(ctx context.Context, name string) (life string, err error) {
	rec, err := r.registered(ctx, name)
	if err != nil || rec.State != Open {
		return "", err
	}
	return rec.Life, nil
}

// register writes the log's version of a record over a registered one that differs, and returns
// it with its revision. The log is sufficient without the registry: when the registry cannot be
// written, or another process was faster, the next look corrects it.
func (r *Registry) register(ctx context.Context, rec, registered Record) Record {
	if r.readOnly && (registered.Revision == 0 || !registered.saysAs(rec)) {
		rec.Revision = registered.Revision
		r.correct(key(rec.Session), rec)
		return rec
	}
	written, err := r.write(ctx, rec, registered)
	if err != nil {
		r.log.Debug("the registry could not be written", "session", rec.Session, "error", err)
	}
	return written
}

// write writes a record over a registered one that differs, and returns it with its revision.
// With an error, which wraps [ErrConflict] or [ErrUnavailable], that is the registered one's.
func (r *Registry) write(ctx context.Context, rec, registered Record) (Record, error) {
	k := key(rec.Session)
	if registered.Revision != 0 && registered.saysAs(rec) {
		rec.Revision, rec.Ended = registered.Revision, registered.Ended
		r.put(k, rec)
		return rec, nil
	}
	rec.Revision = registered.Revision
	data, err := json.Marshal(rec)
	if err != nil {
		return rec, err
	}
	var revision uint64
	if registered.Revision == 0 {
		revision, err = r.kv.Create(ctx, k, data)
	} else {
		revision, err = r.kv.Update(ctx, k, data, registered.Revision)
	}
	if err != nil {
		return rec, casError(err)
	}
	rec.Revision = revision
	r.put(k, rec)
	return rec, nil
}

// CopyOrGet returns the copy of the record of an open session, and is [Registry.Get] where
// the copy has none.
func (r *Registry) CopyOrGet(ctx context.Context, name string) (Record, error) {
	if rec, ok := r.Session(name); ok && rec.State == Open {
		return rec, nil
	}
	return r.Get(ctx, name)
}

// Create opens a session in the log and registers it. Errors wrap [ErrExists], whoever owns the
// session of that name, since a name is given once, or [ErrUnavailable].
func (r *Registry) Create(ctx context.Context, rec Record) (Record, error) {
	registered, err := r.registered(ctx, rec.Session)
	if err != nil {
		return Record{}, err
	}
	if registered.Session != "" {
		return Record{}, ErrExists // even if the log has forgotten the session: a tombstone keeps its name
	}
	_, err = r.events.OpenSession(ctx, rec.opening())
	switch {
	case errors.Is(err, eventlog.ErrExists):
		return Record{}, ErrExists
	case err != nil:
		return Record{}, unavailable(err)
	}
	return r.register(ctx, rec, registered), nil
}

// Ensure returns the record of an open session, and has create open one where there is no session, as
// [Registry.Create] does; other errors of create are returned. Errors wrap [ErrClosed] when the
// session has ended, or [ErrUnavailable].
func (r *Registry) Ensure(ctx context.Context, name string, create func() (Record, error)) (Record, error) {
	rec, err := r.CopyOrGet(ctx, name)
	if errors.Is(err, ErrNotFound) {
		if rec, err = create(); errors.Is(err, ErrExists) {
			rec, err = r.Get(ctx, name)
		}
		if errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("%w: session %s was removed at this moment", ErrUnavailable, name)
		}
	}
	if err == nil && rec.State != Open {
		err = fmt.Errorf("%w: session %s", ErrClosed, name)
	}
	return rec, err
}

// setAttempts is how often a change begins again when another process changes the session too.
const setAttempts = 10

// SetMembers replaces the members of an open session, in the log and in the registry, and returns
// its record; see change. check is called with the session as the log has it and may refuse the
// change; its error is returned.
func (r *Registry) SetMembers(ctx context.Context, name string, members []string, check func(Record) error) (Record, error) {
	return r.change(ctx, name, func(rec Record) (Record, error) {
		if err := check(rec); err != nil || slices.Equal(rec.Members, members) {
			return rec, err
		}
		rec = rec.WithMembers(members)
		rec.Changes++
		return rec, nil
	})
}

// SetMetadata replaces the metadata of an open session in a life, in the log and in the registry, and
// returns its record; see change. Errors also wrap [ErrClosed] when the life is over.
func (r *Registry) SetMetadata(ctx context.Context, name, life string, metadata json.RawMessage) (Record, error) {
	return r.change(ctx, name, func(rec Record) (Record, error) {
		if rec.Life != life {
			return rec, fmt.Errorf("%w: session %s", ErrClosed, name)
		}
		if bytes.Equal(rec.Metadata, metadata) {
			return rec, nil
		}
		rec = rec.withMetadata(metadata)
		rec.Changes++
		return rec, nil
	})
}

// change changes an open session, in the log and in the registry, and returns its record.
//
// A change, another change and the janitor's copy of the opening are stored by compare-and-set
// on the same subject: the one that is refused reads the newest opening and begins again. Of
// concurrent changes each stores the opening once, and the registry gets the log's last opening.
// A header of the opening counts the changes, since the janitor's tail brings no content:
// it repairs a registry with another number, which would let removed members in.
//
// edit returns the record with the change, and one more in Changes; with the same Changes nothing
// is stored. Its error is returned. When change returns no error, the change is on its way to all
// copies of the registry. It is safe to repeat: an error leaves open whether it was made. Errors
// wrap [ErrNotFound], [ErrClosed] or [ErrUnavailable].
func (r *Registry) change(ctx context.Context, name string, edit func(Record) (Record, error)) (Record, error) {
	stored := false
	for range setAttempts {
		f, err := r.find(ctx, name)
		if err != nil {
			return Record{}, err
		}
		rec, err := r.judge(ctx, f)
		edited := rec
		if err == nil && !stored { // once it is, the registry gets the log's version
			edited, err = edit(rec)
			if err == nil && rec.State != Open {
				err = fmt.Errorf("%w: session %s", ErrClosed, name)
			}
		}
		if err != nil {
			return Record{}, err
		}
		registered := f.registered
		if edited.Changes != rec.Changes {
			registered = Record{Revision: rec.Revision} // judge may have corrected it
			rec = edited
			o := rec.opening()
			if f.opening != nil {
				o.Sequence, o.Began, o.Later = f.opening.Sequence, f.opening.Began, f.opening.Later
			}
			switch _, err := r.events.ChangeOpening(ctx, o); {
			case errors.Is(err, eventlog.ErrConflict):
				continue
			case err != nil:
				return Record{}, unavailable(err)
			}
			stored = true
		}
		rec, err = r.write(ctx, rec, registered)
		if err == nil || !errors.Is(err, ErrConflict) {
			return rec, err
		}
	}
	return Record{}, fmt.Errorf("%w: session %s is changed by others all the time", ErrUnavailable, name)
}

// End ends a session, or one stream of it when stream is not empty, and clears it too
// when alsoClear is set. When it returns no error no ingest stores anything more in it. It is
// safe to repeat, and completes an end that another process began. Errors wrap [ErrNotFound],
// [ErrUnavailable], or those of [eventlog.Log.EndSession].
func (r *Registry) End(ctx context.Context, name, stream string, alsoClear bool) error {
	rec, err := r.Get(ctx, name)
	if err != nil {
		return err
	}
	return r.EndOf(ctx, rec, stream, alsoClear)
}

// EndOf is [Registry.End] for the session of a record that [Registry.Get] has returned, and touches no other life
// of its name, which may be another owner's.
func (r *Registry) EndOf(ctx context.Context, rec Record, stream string, alsoClear bool) (err error) {
	// Also a session that is closed already: its end may have stopped half-way.
	if stream != "" {
		err = r.events.EndStream(ctx, rec.Session, rec.Life, stream)
	} else {
		err = r.EndLife(ctx, rec)
	}
	if err == nil && alsoClear {
		err = r.events.ClearStream(ctx, rec.Session, rec.Life, stream)
	}
	return err
}

// EndLife is [Registry.End] for the session of a record, and touches no other life of its
// name. The registry gets the record as it is, so it must have its metadata.
func (r *Registry) EndLife(ctx context.Context, rec Record) error {
	if err := r.events.EndSession(ctx, rec.Session, rec.Life); err != nil {
		return err
	}
	if rec.State != Open {
		return nil
	}
	at, sealed, err := r.events.Sealed(ctx, rec.Session, rec.Life)
	if err != nil || !sealed {
		r.log.Debug("the registry is left to the next look", "session", rec.Session, "error", err)
		return nil
	}
	ended := rec
	ended.State, ended.Ended = Closed, at.UTC()
	r.register(ctx, ended, rec)
	return nil
}

// Remove deletes a record that has not changed since it was read, when the log has no opening
// of its session any more: from then on the name may be opened again. Errors wrap [ErrConflict]
// or [ErrUnavailable].
func (r *Registry) Remove(ctx context.Context, rec Record) error {
	f, err := r.find(ctx, rec.Session)
	if err != nil {
		return err
	}
	if f.registered.Revision != rec.Revision || f.opening != nil {
		return fmt.Errorf("%w: session %s", ErrConflict, rec.Session)
	}
	ctx, done := natsconn.While(ctx, r.nc)
	defer done()
	// The marker of [jetstream.KeyValue.Purge] without the roll-up: the bucket has no history.
	marker := nats.NewMsg("$KV." + Bucket + "." + key(rec.Session))
	marker.Header.Set("KV-Operation", "PURGE")
	_, err = r.js.PublishMsg(ctx, marker, jetstream.WithExpectLastSequencePerSubject(rec.Revision), jetstream.WithMsgTTL(markerTTL))
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
