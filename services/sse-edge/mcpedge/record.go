package mcpedge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/logrepeat"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
)

const (
	// attachTimeout bounds a request to NATS.
	attachTimeout = 2 * time.Second
	// attachEdges begins the keys of edges; no session's token begins with it.
	attachEdges = "=edge."
	// attachAgain is the pause before the bucket is followed again after an error.
	attachAgain = time.Second
)

// attachRecord is the bucket's value for a stream.
type attachRecord struct {
	// Edge is the edge of the newest connection.
	Edge string `json:"edge"`
	// From is the event ID that was the cursor of the connection before, or of the released one.
	From string `json:"from,omitempty"`
	// Released says that the connection has ended: an edge with an older connection may take over.
	Released bool `json:"released,omitempty"`
}

// attachRecords is the bucket [rpc.AttachBucket], which the janitor creates. It is safe for
// concurrent use.
//
// Records may be lost with the bucket, or by a power cut. The edge that holds a stream writes its
// record again within 10 s, and only where there is none.
type attachRecords struct {
	js       jetstream.JetStream
	within   time.Duration // bounds each use
	replicas int
	trouble  *logrepeat.Log                     // logs that the bucket cannot be used, which is tried again soon
	kv       atomic.Pointer[jetstream.KeyValue] // nil until it is opened
}

// errNoRecords is returned while the bucket cannot be reached.
var errNoRecords = errors.New("the attach records cannot be reached")

func newAttachRecords(nc *nats.Conn, replicas int, logger *slog.Logger) (*attachRecords, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(attachTimeout))
	if err != nil {
		return nil, err
	}
	return &attachRecords{js: js, within: attachTimeout, replicas: replicas, trouble: logrepeat.New(logger)}, nil
}

// open opens the bucket. One that was deleted is created again, if the edge's NATS user may.
func (a *attachRecords) open(ctx context.Context) error {
	ctx, done := natsconn.While(ctx, a.js.Conn())
	defer done()
	kv, err := bucket.Ensure(ctx, a.js, rpc.AttachConfig(a.replicas))
	if err == nil {
		kv = bucket.Patient(a.js.Conn(), kv)
		a.kv.Store(&kv)
	}
	return err
}

// connected reports whether there is a connection to NATS.
func (a *attachRecords) connected() bool { return a.js.Conn().IsConnected() }

// use calls f with the bucket, as long as there is a connection.
func (a *attachRecords) use(ctx context.Context, f func(context.Context, jetstream.KeyValue) error) error {
	kv := a.kv.Load()
	if kv == nil || !a.connected() {
		return errNoRecords
	}
	ctx, cancel := context.WithTimeout(ctx, a.within)
	defer cancel()
	ctx, done := natsconn.While(ctx, a.js.Conn())
	defer done()
	return f(ctx, *kv)
}

// claim makes a record an edge's, whatever it was, and returns the record before and the
// new revision.
func (a *attachRecords) claim(ctx context.Context, key, edge string) (before attachRecord, revision uint64, err error) {
	value := event.MustJSON(attachRecord{Edge: edge})
	err = a.use(ctx, func(ctx context.Context, kv jetstream.KeyValue) error {
		for {
			before = attachRecord{}
			entry, err := kv.Get(ctx, key)
			switch {
			case errors.Is(err, jetstream.ErrKeyNotFound):
				revision, err = kv.Create(ctx, key, value)
			case err == nil:
				_ = json.Unmarshal(entry.Value(), &before) // an unreadable record belongs to no edge
				revision, err = kv.Update(ctx, key, value, entry.Revision())
			}
			if err == nil || !bucket.Conflict(err) {
				return err
			}
		}
	})
	return before, revision, err
}

// read returns a record.
func (a *attachRecords) read(ctx context.Context, key string) (r attachRecord, revision uint64, err error) {
	err = a.use(ctx, func(ctx context.Context, kv jetstream.KeyValue) error {
		entry, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		revision = entry.Revision()
		return json.Unmarshal(entry.Value(), &r)
	})
	return r, revision, err
}

// change replaces an existing record, if to returns true.
func (a *attachRecords) change(ctx context.Context, key string, to func(attachRecord) (attachRecord, bool)) error {
	return a.use(ctx, func(ctx context.Context, kv jetstream.KeyValue) error {
		for {
			entry, err := kv.Get(ctx, key)
			if err != nil {
				return err
			}
			var now attachRecord
			_ = json.Unmarshal(entry.Value(), &now) // an unreadable record belongs to no edge
			next, ok := to(now)
			if !ok {
				return nil
			}
			if _, err = kv.Update(ctx, key, event.MustJSON(next), entry.Revision()); !bucket.Conflict(err) {
				return err
			}
		}
	})
}

// update replaces a record, if last is its revision.
func (a *attachRecords) update(ctx context.Context, key string, r attachRecord, last uint64) (revision uint64, err error) {
	err = a.use(ctx, func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Update(ctx, key, event.MustJSON(r), last)
		return err
	})
	return revision, err
}

// beat gives a sign of life.
func (a *attachRecords) beat(ctx context.Context, edge string) {
	_ = a.use(ctx, func(ctx context.Context, kv jetstream.KeyValue) error { // the next one may succeed
		_, err := kv.Put(ctx, attachEdges+edge, nil)
		return err
	})
}

// follow shows all records and their changes until ctx ends, and gives signs of life of an edge. It calls
// dropRevisions first, and again when the bucket may be another one, whose revisions are unrelated to those before.
func (a *attachRecords) follow(ctx context.Context, edge string, to *attachments) {
	for ctx.Err() == nil {
		err := a.open(ctx)
		if err == nil {
			to.dropRevisions()
			a.beat(ctx, edge)
			err = bucket.Follow(ctx, a.js, rpc.AttachBucket, func(e bucket.Entry) {
				if other, ok := strings.CutPrefix(e.Key, attachEdges); ok {
					to.hear(other)
					return
				}
				var r attachRecord
				if !e.Removed && json.Unmarshal(e.Value, &r) == nil {
					to.show(e.Key, r, e.Revision)
				}
			}, func() {})
		}
		if ctx.Err() == nil && !errors.Is(err, natsconn.ErrChanged) && a.connected() {
			a.trouble.Note(ctx, err.Error(), "cannot follow the attach records", slog.Any("error", err))
		}
		natsconn.Pause(ctx, attachAgain)
	}
}
