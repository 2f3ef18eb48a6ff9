// Package owners notes which principal owns each task that an MCP server makes itself: the
// server may see one client, the bridge, and give any task to it.
package owners

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/event"
	"rejoin/shared/rpc"
)

// prefix begins the keys in the bucket of calls. No session's token has a "=" there.
const prefix = "=task."

const (
	// longest is how long a task is noted that its server keeps for longer, or without a limit.
	longest = 24 * time.Hour
	// writeTimeout bounds a request to NATS.
	writeTimeout = 2 * time.Second
)

// Notes are in the bucket of calls, where all bridges find them. They are safe for concurrent use.
type Notes struct {
	js       jetstream.JetStream
	shortest time.Duration
	now      func() time.Time

	mu        sync.Mutex
	unwritten map[string]int
}

// New returns the notes of a bridge, each of which is kept for shortest at least.
func New(js jetstream.JetStream, shortest time.Duration) *Notes {
	return &Notes{js: js, shortest: max(shortest, time.Second), now: time.Now, unwritten: map[string]int{}}
}

// Note notes that a task belongs to a principal, here at once; write tries to store that for the other
// bridges. ttl is how long the server keeps the task; 0 for no limit. The note is kept for as long, at
// least for the shortest time and at most for a day, and again when it is used in the second half.
func (n *Notes) Note(principal, task string, ttl time.Duration) (write func(context.Context) error) {
	if ttl <= 0 || ttl > longest {
		ttl = longest
	}
	key, ttl := keyOf(principal, task), max(n.shortest, ttl)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unwritten[key]++
	return func(ctx context.Context) error {
		err := bucket.CheckRoom(ctx, n.js, rpc.CallsBucket)
		if err == nil {
			err = n.put(ctx, key, ttl)
		}
		if err == nil {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.unwritten[key]--; n.unwritten[key] == 0 {
				delete(n.unwritten, key)
			}
		}
		return err
	}
}

// Unwritten returns how many notes only this bridge has.
func (n *Notes) Unwritten() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.unwritten)
}

// Owns reports whether a task is noted for a principal. The error is that of NATS.
func (n *Notes) Owns(ctx context.Context, principal, task string) (bool, error) {
	key := keyOf(principal, task)
	n.mu.Lock()
	unwritten := n.unwritten[key] > 0
	n.mu.Unlock()
	if unwritten {
		return true, nil
	}
	seconds, written, err := n.get(ctx, key)
	if err != nil || seconds == 0 {
		return false, err
	}
	if ttl := time.Duration(seconds) * time.Second; n.now().Sub(written) > ttl/2 {
		_ = n.put(ctx, key, ttl) // again the next time
	}
	return true, nil
}

func keyOf(principal, task string) string {
	sum := sha256.Sum256(event.MustJSON([]string{principal, task}))
	return prefix + hex.EncodeToString(sum[:])
}

// put writes a note, whose value is the seconds for which it is kept.
func (n *Notes) put(ctx context.Context, key string, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return bucket.PutFor(ctx, n.js, rpc.CallsBucket, key, strconv.AppendInt(nil, int64(ttl/time.Second), 10), ttl)
}

// get reads a note; 0 seconds for none. It asks the leader of the bucket, since a client may use its
// task as soon as it has the ID.
func (n *Notes) get(ctx context.Context, key string) (seconds int64, written time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	value, written, _, err := bucket.Last(ctx, n.js.Conn(), rpc.CallsBucket, key)
	if err != nil {
		return 0, written, err
	}
	seconds, _ = strconv.ParseInt(string(value), 10, 64) // one that has expired has none
	return seconds, written, nil
}
