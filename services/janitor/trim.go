package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

func (t *trims) tryOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trimsTimeout)
	defer cancel()
	ctx, done := link.While(ctx, t.log.Conn())
	defer done()
	js, err := jetstream.New(t.log.Conn(), jetstream.WithDefaultTimeout(trimsTimeout))
	if err != nil {
		return err
	}
	t.js = js
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
	return t.load(ctx, time.Time{})
}

// load reads all marks, unless that was begun after a moment already.
func (t *trims) load(ctx context.Context, since time.Time) error {
	select {
	case t.reading <- struct{}{}:
		defer func() { <-t.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	begun := time.Now()
	t.mu.Lock()
	fresh := t.read.After(since)
	t.mu.Unlock()
	if fresh {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, trimsTimeout)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := reading{theirs: map[int]bool{}, there: map[string]uint64{}}
	err := bucket.Follow(ctx, t.js, TrimsBucket, func(e bucket.Entry) { t.show(e, r) }, func() { stop(errAllRead) })
	if !errors.Is(err, errAllRead) {
		return err
	}
	t.mu.Lock()
	t.read, t.lost = begun, map[string]struct{}{}
	for name, mark := range t.all {
		if r.there[name] < mark.UpTo {
			t.lost[name] = struct{}{}
		}
	}
	t.mu.Unlock()
	for p := range r.theirs {
		t.theirs(p)
	}
	return nil
}

// reading is what one reading of the bucket finds.
type reading struct {
	theirs map[int]bool      // partitions of which it has marks that were not known
	there  map[string]uint64 // how far each mark reaches
}

var errAllRead = errors.New("all is read")

// show enters what the bucket holds, and notes it in r.
func (t *trims) show(e bucket.Entry, r reading) {
	name, err := event.SessionName(e.Key)
	var mark trim
	if !e.Removed {
		err = errors.Join(err, json.Unmarshal(e.Value, &mark))
	}
	if err != nil {
		t.logger.Warn("a trim mark cannot be read", "key", e.Key, "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.all[name]
	r.there[name] = mark.UpTo
	switch {
	case known && e.Revision < old.revision:
		// A server that was started anew has lost the newest.
	case e.Removed:
		delete(t.all, name)
	case known && old.Birth == mark.Birth && old.UpTo >= mark.UpTo:
		t.all[name] = kept{old.trim, e.Revision}
	default:
		t.all[name] = kept{mark, e.Revision}
		r.theirs[t.log.Partition(name)] = true
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
	if conflict(err) {
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

// over writes a mark over a revision; 0 means that there is none.
func (t *trims) over(ctx context.Context, name string, mark trim, revision uint64) (uint64, error) {
	data, err := json.Marshal(mark)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		return t.kv.Create(ctx, event.Token(name), data)
	}
	return t.kv.Update(ctx, event.Token(name), data, revision)
}

// get returns the mark of a session in the bucket; none has revision 0.
func (t *trims) get(ctx context.Context, name string) (mark kept, err error) {
	e, err := t.kv.Get(ctx, event.Token(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return kept{}, nil
	}
	if err == nil {
		mark.revision = e.Revision()
		err = json.Unmarshal(e.Value(), &mark.trim)
	}
	return mark, err
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
		t.mu.Lock()
		revision := t.all[name].revision
		t.mu.Unlock()
		err := t.kv.Purge(ctx, event.Token(name), jetstream.PurgeTTL(trimTTL), jetstream.LastRevision(revision))
		var is kept
		if conflict(err) { // another janitor has written it, or removed it
			is, err = t.get(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("cannot remove a trim mark: %w", err)
		}
		if is.revision != 0 {
			t.set(name, is)
			t.theirs(p)
			continue
		}
		t.mu.Lock()
		delete(t.all, name)
		t.mu.Unlock()
	}
	return nil
}
