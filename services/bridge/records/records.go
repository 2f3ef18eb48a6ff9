// Package records has the state that a bridge stores for the next one of its name: in the bucket of calls the
// cursor of each open stream, and in the registry the metadata of each session.
package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/bridge/retry"
	"rejoin/shared/backend"
	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
)

const (
	recordEvery  = 250 * time.Millisecond // between two looks at the open streams
	recordAfter  = 500 * time.Millisecond // is how long a call lasts before it is written down
	recordPause  = 2 * time.Second        // between two records of one call
	writeTimeout = 2 * time.Second        // bounds a write
	// markerTTL is how long the bucket keeps the marker of a removed record. Nothing reads it, but NATS wants one.
	markerTTL = time.Minute
)

// Record is the value of a stream in the bucket of calls, under <session token>.<stream
// token>: the next bridge continues from it.
type Record struct {
	// ID is the upstream's last event ID that is stored; empty when it gives none.
	ID string `json:"id,omitempty"`
	// Sequence is that of the log's last event then.
	Sequence uint64 `json:"sequence,omitempty"`
	// Updated is when this run has written the record; zero for one of another run, whose clock may be another one.
	Updated time.Time `json:"-"`
	// At is the MCP server's side of a call that has a session to itself. The session's metadata lacks
	// it when the session was opened in the log before the server answered initialize.
	At *CallAt `json:"at,omitempty"`
}

// Key returns the key of the record of a stream.
func Key(session, stream string) string {
	return event.Token(session) + "." + event.Token(stream)
}

// OpenCall is a stream that is open, as it is written down.
type OpenCall struct {
	Session, Stream string
	Began           time.Time
	ID              string // the upstream's last event ID that is stored
	Sequence        uint64 // that of the log's last event then
	At              *CallAt
}

// Bucket is the bucket of calls. It writes down the open streams. It belongs to one goroutine at a time, but for
// [Bucket.Remember].
type Bucket struct {
	nc      *nats.Conn
	log     *slog.Logger
	JS      jetstream.JetStream
	KV      jetstream.KeyValue
	written map[string]*Record // nil for one of unknown outcome
}

// Open opens the bucket, and makes it when it is missing. It tries until ctx ends.
func Open(ctx context.Context, b *backend.Backend, log *slog.Logger) (*Bucket, error) {
	js, err := jetstream.New(b.Conn, jetstream.WithDefaultTimeout(writeTimeout))
	if err != nil {
		return nil, err
	}
	r := &Bucket{nc: b.Conn, log: log, JS: js, written: map[string]*Record{}}
	return r, retry.Do(ctx, func() (err error) {
		r.KV, err = bucket.Ensure(ctx, js, rpc.CallsConfig(b.Log.Settings().Replicas))
		if err != nil {
			log.Info("the bucket of open calls cannot be opened yet", "error", err)
		}
		return err
	})
}

// Adopt takes over a record of another run. The record is removed unless its stream is open.
func (r *Bucket) Adopt(key string, rec Record) { r.written[key] = &rec }

// Load returns the records of all calls of all bridges, and nothing else that lies in the bucket. It tries until ctx
// ends.
func (r *Bucket) Load(ctx context.Context) (all map[string]Record, err error) {
	err = retry.Do(ctx, func() error {
		all = map[string]Record{}
		whole, done := context.WithCancel(ctx)
		defer done()
		err := bucket.Follow(whole, r.JS, rpc.CallsBucket, func(e bucket.Entry) {
			var rec Record
			if _, _, ok := ParseKey(e.Key); ok && !e.Removed && json.Unmarshal(e.Value, &rec) == nil {
				all[e.Key] = rec
			}
		}, done)
		if whole.Err() != nil {
			return ctx.Err() // nil, unless it has ended: whole ended since the records are complete
		}
		r.log.Info("the records of open calls cannot be read yet", "error", err)
		return err
	})
	return all, err
}

// Run writes the records of the streams that open returns, until ctx ends, but not while confirm fails: without the
// bridge's name, which confirm looks for, the records are those of another bridge.
func (r *Bucket) Run(ctx context.Context, confirm func(context.Context) error, open func() []OpenCall) {
	ticker := time.NewTicker(recordEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if confirm(ctx) == nil {
				_ = r.write(open(), false) // again the next time
			}
		}
	}
}

// WriteAll writes down all open streams. It tries for writeTimeout: the bridge may be about
// to reconnect to NATS. An edge asks about a call that was not written down, which ends the
// call with an error. confirm is that of Run.
func (r *Bucket) WriteAll(confirm func(context.Context) error, open []OpenCall) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	if err := retry.Do(ctx, func() error {
		if err := confirm(ctx); err != nil {
			return err
		}
		return r.write(open, true)
	}); err != nil {
		r.log.Warn("open calls are not written down")
	}
}

// write writes the records that are due; with all, every record is. After an error the
// remaining records are due the next time.
func (r *Bucket) write(open []OpenCall, all bool) error {
	ctx, done := natsconn.While(context.Background(), r.nc)
	defer done()
	now := time.Now()
	is := map[string]bool{}
	for _, c := range open {
		key := Key(c.Session, c.Stream)
		is[key] = true
		last, was := r.written[key]
		switch {
		case last != nil && last.ID == c.ID && last.At == c.At:
			continue
		case !was && c.Stream == rpc.Standalone && c.ID == "":
			continue
		case !all && (last != nil && now.Sub(last.Updated) < recordPause || now.Sub(c.Began) < recordAfter):
			continue
		}
		rec := Record{ID: c.ID, Sequence: c.Sequence, Updated: now, At: c.At}
		if err := r.Put(ctx, key, rec); err != nil {
			r.log.Debug("an open call is not written down", "error", err)
			return err
		}
	}
	for key := range r.written {
		if is[key] {
			continue
		}
		if err := r.remove(ctx, key); err != nil {
			r.log.Debug("the record of a call is not removed", "error", err)
			return err
		}
	}
	return nil
}

// Put writes a record.
func (r *Bucket) Put(ctx context.Context, key string, rec Record) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := r.KV.Put(ctx, key, data); err != nil {
		if natsconn.Code(err) == 0 { // no answer
			r.written[key] = nil
		}
		return err
	}
	r.written[key] = &rec
	return nil
}

func (r *Bucket) remove(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := r.KV.Purge(ctx, key, jetstream.PurgeTTL(markerTTL)); err != nil {
		return err
	}
	delete(r.written, key)
	return nil
}

// ParseKey returns the session and stream that a record is about.
func ParseKey(key string) (session, stream string, ok bool) {
	first, second, _ := strings.Cut(key, ".")
	session, err := event.SessionName(first)
	if err != nil {
		return "", "", false
	}
	stream, err = event.StreamName(second)
	return session, stream, err == nil
}

// listenPrefix begins the keys of listeners in the bucket. No session's token has a "=" there.
const listenPrefix = "=listen."

// Remember notes for a time that a client listens to the subscription of a hash. missing reports whether a
// bridge has a note of that already, so that changes may be missing. A failed lookup counts as a note.
func (r *Bucket) Remember(ctx context.Context, of [sha256.Size]byte, ttl time.Duration) (missing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	key := listenPrefix + hex.EncodeToString(of[:])
	_, err = r.KV.Get(ctx, key)
	if missing = !errors.Is(err, jetstream.ErrKeyNotFound); !missing {
		if err := bucket.CheckRoom(ctx, r.JS, rpc.CallsBucket); err != nil {
			return false, err
		}
	}
	return missing, bucket.PutFor(ctx, r.JS, rpc.CallsBucket, key, nil, ttl)
}
