package web

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// limiterBurst is how much may come at once: what the rate gives in this time.
	limiterBurst = 10 * time.Second
	// limiterKeys bounds the buckets of either half of a limiter: some 10 MB in all.
	limiterKeys = 1 << 15
)

// Limiter bounds how often something may happen for each key, with a token bucket that
// holds as many tokens as ten seconds give. A nil Limiter bounds nothing. It is safe for
// concurrent use.
//
// It holds at most 65,536 buckets. One that was not used for ten seconds is full, as a
// new one is, and is dropped. When more keys than fit are in use, those that were used
// least recently start again.
type Limiter[K comparable] struct {
	perSecond int

	mu            sync.Mutex
	recent, older map[K]*rate.Limiter // older: not used since turned, at which recent began
	turned        time.Time
}

// CheckLimit returns an error that names the flag when n is no limit: less than -1, which is none.
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
	return &Limiter[K]{perSecond: perSecond, recent: map[K]*rate.Limiter{}, turned: time.Now()}
}

// Take takes a token and returns 0, or returns how long it is until there is one: up to
// a second.
func (l *Limiter[K]) Take(key K) (wait time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	bucket := l.bucket(key, now)
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
	bucket := l.bucket(key, now)
	bucket.AllowN(now, int(bucket.TokensAt(now)))
}

// bucket returns the bucket of a key. The caller holds the lock.
func (l *Limiter[K]) bucket(key K, now time.Time) *rate.Limiter {
	if now.Sub(l.turned) >= limiterBurst || len(l.recent) >= limiterKeys {
		l.older, l.recent, l.turned = l.recent, map[K]*rate.Limiter{}, now
	}
	b, ok := l.recent[key]
	if ok {
		return b
	}
	if b, ok = l.older[key]; ok {
		delete(l.older, key)
	} else {
		b = rate.NewLimiter(rate.Limit(l.perSecond), l.perSecond*int(limiterBurst/time.Second))
	}
	l.recent[key] = b
	return b
}
