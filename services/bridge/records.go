package bridge

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/bridge/translate"
	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
)

const (
	recordEvery = 250 * time.Millisecond // between two looks at what is open
	recordAfter = 500 * time.Millisecond // is how long a call lasts before it is written down
	recordPause = 2 * time.Second        // between two records of one call
	recordWrite = 2 * time.Second        // bounds a write
	// recordMarkerTTL is how long the bucket keeps the marker of a removed record.
	recordMarkerTTL = time.Hour
)

// record is what the bucket of calls holds of a stream, under <session token>.<stream
// token>: what the next bridge continues from.
type record struct {
	// ID is the upstream's last event ID that is stored; empty when it gives none.
	ID string `json:"id,omitempty"`
	// Sequence is that of the log's last event then.
	Sequence uint64    `json:"sequence,omitempty"`
	Updated  time.Time `json:"updated"`
	// At is the MCP server's side of a call that has a session to itself. The session's metadata lacks
	// it when the session was opened in the log before the server answered initialize.
	At *callAt `json:"at,omitempty"`
}

// callAt is what [metadata] has of a call, as the next bridge needs it.
type callAt struct {
	Upstream        string  `json:"upstream,omitempty"`
	ProtocolVersion string  `json:"protocolVersion,omitempty"`
	Call            oneCall `json:"call"`
}

func recordKey(session, stream string) string {
	return event.Token(session) + "." + event.Token(stream)
}

// records writes down what is open. It belongs to one goroutine at a time.
type records struct {
	service *Service
	js      jetstream.JetStream
	kv      jetstream.KeyValue
	written map[string]record
}

// openRecords opens the bucket, and makes it when it is missing. It tries until ctx ends.
func (s *Service) openRecords(ctx context.Context) (*records, error) {
	js, err := jetstream.New(s.backend.Conn, jetstream.WithDefaultTimeout(recordWrite))
	if err != nil {
		return nil, err
	}
	r := &records{service: s, js: js, written: map[string]record{}}
	return r, retry(ctx, func() (err error) {
		r.kv, err = bucket.Ensure(ctx, js, jetstream.KeyValueConfig{
			Bucket: rpc.CallsBucket, Description: "Rejoin: calls that bridges work on",
			Replicas: s.backend.Log.Settings().Replicas, LimitMarkerTTL: recordMarkerTTL,
		})
		if err != nil {
			s.log.Info("the bucket of open calls cannot be opened yet", "error", err)
		}
		return err
	})
}

// load returns all records of all bridges. It tries until ctx ends.
func (r *records) load(ctx context.Context) (all map[string]record, err error) {
	err = retry(ctx, func() error {
		all = map[string]record{}
		whole, done := context.WithCancel(ctx)
		defer done()
		err := bucket.Follow(whole, r.js, rpc.CallsBucket, func(e bucket.Entry) {
			var rec record
			if !e.Removed && json.Unmarshal(e.Value, &rec) == nil {
				all[e.Key] = rec
			}
		}, done)
		if whole.Err() != nil {
			return ctx.Err() // none: it was ended because it was whole
		}
		r.service.log.Info("the records of open calls cannot be read yet", "error", err)
		return err
	})
	return all, err
}

// run writes until the service stops.
func (r *records) run() {
	ticker := time.NewTicker(recordEvery)
	defer ticker.Stop()
	for {
		select {
		case <-r.service.life.Done():
			return
		case <-ticker.C:
			_ = r.write(false) // again the next time
		}
	}
}

// writeAll writes down everything. It tries for recordWrite: the connection to NATS may be
// about to come back. An edge asks after a call that was not written down, which ends it
// with an error.
func (r *records) writeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), recordWrite)
	defer cancel()
	if err := retry(ctx, func() error { return r.write(true) }); err != nil {
		r.service.log.Warn("open calls are not written down")
	}
}

// write writes down what is due; all says that everything is. After an error the rest is
// due the next time.
func (r *records) write(all bool) error {
	ctx, done := natsconn.While(context.Background(), r.service.backend.Conn)
	defer done()
	now := time.Now()
	open := map[string]bool{}
	for _, c := range r.service.streams() {
		key, at := recordKey(c.session.name, c.stream), c.cursor()
		open[key] = true
		last, was := r.written[key]
		var of *callAt
		if d := c.session.onDemand; d != nil {
			of = d.at.Load()
		}
		switch {
		case was && last.ID == at.ID && last.At == of:
			continue
		case !was && c.standalone() && at.ID == "":
			continue
		case !all && (now.Sub(last.Updated) < recordPause || now.Sub(c.began) < recordAfter):
			continue
		}
		rec := record{ID: at.ID, Sequence: at.Sequence, Updated: now.UTC(), At: of}
		if err := r.put(ctx, key, rec); err != nil {
			r.service.log.Debug("an open call is not written down", "error", err)
			return err
		}
	}
	for key := range r.written {
		if open[key] {
			continue
		}
		if err := r.remove(ctx, key); err != nil {
			r.service.log.Debug("the record of a call is not removed", "error", err)
			return err
		}
	}
	return nil
}

func (r *records) put(ctx context.Context, key string, rec record) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, recordWrite)
	defer cancel()
	if _, err := r.kv.Put(ctx, key, data); err != nil {
		return err
	}
	r.written[key] = rec
	return nil
}

// nameKey is where the bucket says which bridge has a name: the value is the ID of its run, which is
// no record of a call.
func nameKey(name string) string { return "=bridge." + event.Token(name) }

func (r *records) putName(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordWrite)
	defer cancel()
	return bucket.PutFor(ctx, r.js, rpc.CallsBucket, nameKey(r.service.name), []byte(r.service.id), nameTTL)
}

// nameHolder returns the ID of the bridge that has the name, by the leader of the bucket, and since when
// that is written; an empty one for none.
func (r *records) nameHolder(ctx context.Context) (id string, written time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, recordWrite)
	defer cancel()
	value, written, err := bucket.Last(ctx, r.js.Conn(), rpc.CallsBucket, nameKey(r.service.name))
	return string(value), written, err
}

func (r *records) remove(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, recordWrite)
	defer cancel()
	if err := r.kv.Purge(ctx, key, jetstream.PurgeTTL(recordMarkerTTL)); err != nil {
		return err
	}
	delete(r.written, key)
	return nil
}

// names returns the session and stream that a record is about.
func names(key string) (session, stream string, ok bool) {
	first, second, _ := strings.Cut(key, ".")
	session, err := event.SessionName(first)
	if err != nil {
		return "", "", false
	}
	stream, err = event.StreamName(second)
	return session, stream, err == nil
}

// modernSession is what the registry holds of a session at a server that has none.
type modernSession struct {
	Client     translate.Client     `json:"client"`
	Discovered translate.Discovered `json:"discovered"`
	Level      string               `json:"level,omitempty"` // of log messages; empty for none
	URIs       []string             `json:"uris,omitempty"`  // of the resources that the client subscribed to
}

// oneCall is what the registry holds of the one call of a session: what the next bridge needs to
// go on with it at a server of earlier revisions.
type oneCall struct {
	Method   string          `json:"method"`
	Token    json.RawMessage `json:"progressToken,omitempty"`
	LogLevel string          `json:"logLevel,omitempty"`
	Server   json.RawMessage `json:"serverInfo,omitempty"`
	Task     bool            `json:"task,omitempty"` // it may become a task
	Asks     map[string]bool `json:"asks,omitempty"` // what its client can be asked
}

// metadata is what the registry holds of a session of a bridge.
type metadata struct {
	MCP struct {
		// Bridge is the name of the bridge that holds the session.
		Bridge string `json:"bridge"`
		// Upstream is the MCP server's own name of the session; empty when it has none.
		Upstream string `json:"upstream,omitempty"`
		// ProtocolVersion is what client and server agreed on.
		ProtocolVersion string `json:"protocolVersion,omitempty"`
		// Modern is what the bridge keeps of a session at a server that has none.
		Modern *modernSession `json:"modern,omitempty"`
		// Call is that of a session that is of one call of a revision without sessions.
		Call *oneCall `json:"call,omitempty"`
	} `json:"mcp"`
	// Retention is what the session asks for; see [session.Retention]. Nil for nothing.
	Retention *retention `json:"retention,omitempty"`
}

// retention is the part of [session.Retention] that a bridge asks for, in seconds.
type retention struct {
	// IdleAfter is that of a session with a process: many clients end without a DELETE, and each
	// would keep its process for --idle-after.
	IdleAfter int64 `json:"idleAfter,omitempty"`
	// KeepClosed is that of a session of one call: no client knows its name, so it need not be kept
	// for longer than a client may come back for the response.
	KeepClosed int64 `json:"keepClosed,omitempty"`
}
