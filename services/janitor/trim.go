package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/link"
	"rejoin/shared/marks"
)

// TrimsBucket is the key-value bucket of the durable trim marks.
const TrimsBucket = "MCP_TRIMS"

// trim is a durable trim mark: how far a janitor has removed events of a session,
// or was about to, written before the first delete. The key is the session's token.
type trim struct {
	UpTo   uint64       `json:"upTo"`
	Reason marks.Reason `json:"reason"`
	// Birth is the partition's, so that the mark says nothing of another log.
	Birth string `json:"birth"`
}

// trims are the durable trim marks, in memory and in the bucket. Only the acting
// janitor writes them. It is safe for concurrent use.
type trims struct {
	log    *eventlog.Log
	logger *slog.Logger
	kv     jetstream.KeyValue

	mu  sync.Mutex
	all map[string]trim // by session
}

// trimsTimeout bounds one request.
const trimsTimeout = 5 * time.Second

// trimsRetry is how long open waits between attempts.
const trimsRetry = 200 * time.Millisecond

// trimTTL is how long the bucket remembers that a mark was removed.
const trimTTL = time.Hour

func newTrims(log *eventlog.Log, logger *slog.Logger) *trims {
	return &trims{log: log, logger: logger, all: map[string]trim{}}
}

// open makes the bucket if it is missing, and reads it. It tries until it can, or
// until ctx ends, whose error it returns then.
func (t *trims) open(ctx context.Context) error {
	said := false
	for {
		err := t.tryOpen(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !said {
			t.logger.Warn("waiting for the trim marks", "error", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(trimsRetry):
		}
	}
}

func (t *trims) tryOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trimsTimeout)
	defer cancel()
	ctx, done := link.While(ctx, t.log.Conn())
	defer done()
	js, err := jetstream.New(t.log.Conn(), jetstream.WithDefaultTimeout(trimsTimeout))
	if err != nil {
		return err
	}
	t.kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: TrimsBucket, Description: "Rejoin: how far the janitor has trimmed each session",
		Replicas: t.log.Settings().Replicas, LimitMarkerTTL: trimTTL,
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		t.kv, err = js.KeyValue(ctx, TrimsBucket)
	}
	if err != nil {
		return fmt.Errorf("the bucket %s: %w", TrimsBucket, err)
	}
	return t.load(ctx, js)
}

// load reads all marks.
func (t *trims) load(ctx context.Context, js jetstream.JetStream) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := bucket.Follow(ctx, js, TrimsBucket, t.show, func() { stop(errAllRead) })
	if errors.Is(err, errAllRead) {
		return nil
	}
	return err
}

var errAllRead = errors.New("all is read")

func (t *trims) show(e bucket.Entry) {
	if e.Removed {
		return
	}
	name, err := event.SessionName(e.Key)
	var mark trim
	if err = errors.Join(err, json.Unmarshal(e.Value, &mark)); err != nil {
		t.logger.Warn("a trim mark cannot be read", "key", e.Key, "error", err)
		return
	}
	t.all[name] = mark
}

// of returns the marks of a partition's sessions that were made in its present life.
func (t *trims) of(p int, birth string) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]uint64{}
	for name, mark := range t.all {
		if mark.Birth == birth && t.log.Partition(name) == p {
			out[name] = mark.UpTo
		}
	}
	return out
}

// write makes sure that the marks of sessions reach at least as far as given.
func (t *trims) write(ctx context.Context, wanted map[string]trim) error {
	for name, mark := range wanted {
		t.mu.Lock()
		old := t.all[name]
		t.mu.Unlock()
		if old.Birth == mark.Birth && old.UpTo >= mark.UpTo {
			continue
		}
		if err := t.put(ctx, name, mark); err != nil {
			return err
		}
	}
	return nil
}

// restore writes all marks again: a server that was started anew may have lost
// the newest ones. It must not run beside write.
func (t *trims) restore(ctx context.Context) error {
	t.mu.Lock()
	all := maps.Clone(t.all)
	t.mu.Unlock()
	for name, mark := range all {
		if err := t.put(ctx, name, mark); err != nil {
			return err
		}
	}
	return nil
}

func (t *trims) put(ctx context.Context, name string, mark trim) error {
	data, err := json.Marshal(mark)
	if err != nil {
		return err
	}
	if _, err := t.kv.Put(ctx, event.Token(name), data); err != nil {
		return fmt.Errorf("cannot write a trim mark: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[name] = mark
	return nil
}

// tidy removes the marks of a partition that say no more than its first retained
// sequence does, and those of an earlier life of it.
func (t *trims) tidy(ctx context.Context, p int, birth string, first uint64) error {
	t.mu.Lock()
	var done []string
	for name, mark := range t.all {
		if t.log.Partition(name) == p && (mark.Birth != birth || mark.UpTo < first) {
			done = append(done, name)
		}
	}
	t.mu.Unlock()
	for _, name := range done {
		if err := t.kv.Purge(ctx, event.Token(name), jetstream.PurgeTTL(trimTTL)); err != nil {
			return fmt.Errorf("cannot remove a trim mark: %w", err)
		}
		t.mu.Lock()
		delete(t.all, name)
		t.mu.Unlock()
	}
	return nil
}
