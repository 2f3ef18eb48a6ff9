package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/link"
)

// tryOpen makes the bucket if it is missing, and reads it.
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
	kv, err := bucket.Ensure(ctx, js, jetstream.KeyValueConfig{
		Bucket: TrimsBucket, Description: "Rejoin: how far the janitor has trimmed each session",
		Replicas: t.log.Settings().Replicas, LimitMarkerTTL: trimTTL,
	})
	if err != nil {
		return fmt.Errorf("the bucket %s: %w", TrimsBucket, err)
	}
	t.kv = bucket.Patient(kv)
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
		if bucket.Conflict(err) { // another janitor has written it, or removed it
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
