package web

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

const (
	// limiterBurst is the time in which the rate gives as many tokens as a bucket holds.
	limiterBurst = 10 * time.Second
	// limiterKeys bounds the buckets of a limiter: some 16 MB.
	limiterKeys = 1 << 16
)

// Limiter bounds the rate of an action for each key, with a token bucket that
// holds as many tokens as ten seconds give. A nil Limiter bounds nothing. It is safe for
// concurrent use.
//
// It holds at most 65,536 buckets. Of more keys those that were used least recently start again; a bucket
// that was not used for ten seconds is full, as a new one is.
type Limiter[K comparable] struct {
	perSecond int

	mu      sync.Mutex
	buckets *simplelru.LRU[K, *rate.Limiter]
}

// CheckLimit returns an error that names the flag when n is not valid: less than -1, which means no limit.
func CheckLimit(n int, flag string) error {
	if n < -1 {
		return fmt.Errorf("%s must be -1 or more, not %d", flag, n)
	}
	return nil
}

// NewLimiter returns a Limiter of so many times a second, or nil when that is less than one.
func NewLimiter[K comparable](perSecond int) *Limiter[K] {
	if perSecond < 1 {
		return nil
	}
	buckets, _ := simplelru.NewLRU[K, *rate.Limiter](limiterKeys, nil) // fails for a size below 1 alone
	return &Limiter[K]{perSecond: perSecond, buckets: buckets}
}

// Take takes a token and returns 0, or returns the time until the next token: up to
// a second.
func (l *Limiter[K]) Take(key K) (wait time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	bucket := l.bucket(key)
	if bucket.AllowN(now, 1) {
		return 0
	}
	missing := 1 - bucket.TokensAt(now)
	return max(time.Duration(missing/float64(l.perSecond)*float64(time.Second)), time.Millisecond)
}

// Drain takes all tokens that a key has, as after a refusal that costs more than this one.
func (l *Limiter[K]) Drain(key K) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	bucket := l.bucket(key)
	bucket.AllowN(now, int(bucket.TokensAt(now)))
}

// bucket returns the bucket of a key. The caller holds the lock.
func (l *Limiter[K]) bucket(key K) *rate.Limiter {
	b, ok := l.buckets.Get(key)
	if !ok {
		b = rate.NewLimiter(rate.Limit(l.perSecond), l.perSecond*int(limiterBurst/time.Second))
		l.buckets.Add(key, b)
	}
	return b
}
