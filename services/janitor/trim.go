package janitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/eventlog"
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

// kept is a mark, and the revision of the bucket that holds it.
type kept struct {
	trim
	revision uint64
}

// trims are the durable trim marks, in memory and in the bucket. Only the acting
// janitor writes them, each over the revision that it knows: when another one has
// written meanwhile, the mark that reaches further stays. It is safe for concurrent use.
type trims struct {
	log    *eventlog.Log
	logger *slog.Logger
	js     jetstream.JetStream
	kv     jetstream.KeyValue
	opened chan struct{} // closed by open

	reading chan struct{} // holds one token while somebody reads the bucket

	mu   sync.Mutex
	all  map[string]kept     // by session
	lost map[string]struct{} // those of which the newest reading found less in the bucket
	read time.Time           // when that reading was begun
	// theirs is called, without a lock, for a partition of which another janitor has
	// written a mark that was not known.
	theirs func(p int)
}

// trimsTimeout bounds one request.
const trimsTimeout = 5 * time.Second

// trimsRetry is how long is waited between attempts.
const trimsRetry = 200 * time.Millisecond

// trimTTL is how long the bucket remembers that a mark was removed.
const trimTTL = time.Hour

func newTrims(log *eventlog.Log, logger *slog.Logger) *trims {
	return &trims{
		log: log, logger: logger, opened: make(chan struct{}), reading: make(chan struct{}, 1),
		all: map[string]kept{}, theirs: func(int) {},
	}
}

// open makes the bucket if it is missing, and reads it. It tries until it can, or
// until ctx ends, whose error it returns then.
func (t *trims) open(ctx context.Context) error {
	err := t.retry(ctx, t.tryOpen)
	if err == nil {
		close(t.opened)
	}
	return err
}

// inherit reads, at the beginning of a term, what the janitor before has written down,
// and writes again what the server has lost of it: one that was started anew may not
// have the newest marks, and deletes do not wait for those that are in memory. It tries
// as open does.
func (t *trims) inherit(ctx context.Context) error {
	begun := time.Now()
	return t.retry(ctx, func(ctx context.Context) error {
		if err := t.load(ctx, begun); err != nil {
			return err
		}
		return t.restore(ctx)
	})
}

func (t *trims) retry(ctx context.Context, try func(context.Context) error) error {
	said := false
	for {
		err := try(ctx)
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
		if err := stillActing(ctx); err != nil {
			return err
		}
		if err := t.put(ctx, name, mark); err != nil {
			return err
		}
	}
	return nil
}

// restore writes again what the bucket has less of. It must not run beside write.
func (t *trims) restore(ctx context.Context) error {
	t.mu.Lock()
	wanted := map[string]trim{}
	for name := range t.lost {
		wanted[name] = t.all[name].trim
	}
	t.mu.Unlock()
	for name, mark := range wanted {
		if err := stillActing(ctx); err != nil {
			return err
		}
		if err := t.put(ctx, name, mark); err != nil && !errors.Is(err, errTheirs) {
			return err
		}
		t.mu.Lock()
		delete(t.lost, name)
		t.mu.Unlock()
	}
	return nil
}

// errTheirs is returned when another janitor has written a mark meanwhile.
var errTheirs = errors.New("another janitor has trimmed the session meanwhile")

func (t *trims) put(ctx context.Context, name string, mark trim) error {
	t.mu.Lock()
	old := t.all[name]
	t.mu.Unlock()
	revision, err := t.over(ctx, name, mark, old.revision)
	if bucket.Conflict(err) {
		// Somebody else has written, or the server has lost what it had.
		var is kept
		if is, err = t.get(ctx, name); err == nil {
			if is.Birth == mark.Birth && is.UpTo > mark.UpTo {
				t.set(name, is)
				t.theirs(t.log.Partition(name))
				return errTheirs
			}
			revision, err = t.over(ctx, name, mark, is.revision)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write a trim mark: %w", err)
	}
	t.set(name, kept{mark, revision})
	return nil
}

func (t *trims) set(name string, mark kept) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[name] = mark
}
