package auth

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// memoryAge is how long a token that was found good is not checked again. A key that
	// is taken out of a key set may be good for as much longer.
	memoryAge = time.Minute

	// memorySize is how many tokens are remembered: those used last.
	memorySize = 8192
)

// memory remembers tokens that were found good, since a publisher sends the same one with
// every message, and checking a signature takes 10 µs with HS256 and 50 to 110 µs with the
// other algorithms. It holds no token, only hashes. Only valid tokens are entered, so a client
// without one cannot evict others. It is safe for concurrent use.
type memory struct {
	*lru.Cache[[sha256.Size]byte, remembered]
}

type remembered struct {
	grants Grants
	until  time.Time
}

func newMemory() memory {
	cache, _ := lru.New[[sha256.Size]byte, remembered](memorySize) // fails only without a size
	return memory{cache}
}

func (m memory) recall(token string, now time.Time) (Grants, bool) {
	r, ok := m.Get(sha256.Sum256([]byte(token)))
	// Expires has no monotonic reading: it passes also while the clock jumps or the machine sleeps.
	return r.grants, ok && now.Before(r.until) && now.Before(r.grants.Expires)
}

func (m memory) remember(token string, grants Grants, now time.Time) {
	m.Add(sha256.Sum256([]byte(token)), remembered{grants, now.Add(memoryAge)})
}
