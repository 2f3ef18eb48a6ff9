package web

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// taken counts how many of n are taken at once.
func taken(l *Limiter[string], key string, n int) (count int) {
	for range n {
		if l.Take(key) == 0 {
			count++
		}
	}
	return count
}

func TestLimiter_RateAndBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter[string](4)
		if got := taken(l, "a", 100); got != 40 {
			t.Errorf("%d at once, want 40", got)
		}
		if wait := l.Take("a"); wait < 240*time.Millisecond || wait > 250*time.Millisecond {
			t.Errorf("the next one is in %s, want 250 ms", wait)
		}
		if got := taken(l, "b", 100); got != 40 {
			t.Errorf("another key: %d, want 40", got)
		}
		time.Sleep(l.Take("a"))
		if got := taken(l, "a", 100); got != 1 {
			t.Errorf("after the wait: %d, want 1", got)
		}
		// At any pace, and with any number of refusals meanwhile, it adds up to the rate.
		sum := 0
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			sum += taken(l, "a", 10)
		}
		if sum < 239 || sum > 241 {
			t.Errorf("%d in a minute, want 240", sum)
		}
	})
}

func TestLimiter_Off(t *testing.T) {
	for _, n := range []int{0, -1} {
		if l := NewLimiter[string](n); taken(l, "a", 1000) != 1000 {
			t.Errorf("%d limits", n)
		}
	}
}

func TestLimiter_MemoryOfAMillionKeys(t *testing.T) {
	l := NewLimiter[string](1)
	for i := range 1_000_000 {
		if l.Take(strconv.Itoa(i)) != 0 {
			t.Fatalf("key %d is refused", i)
		}
		if n := l.buckets.Len(); n > limiterKeys {
			t.Fatalf("%d buckets after %d keys", n, i)
		}
	}
}

func TestLimiter_Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter[string](4)
		l.Drain("a")
		if wait := l.Take("a"); wait < 240*time.Millisecond || wait > 250*time.Millisecond {
			t.Errorf("the next one is in %s, want 250 ms", wait)
		}
		if got := taken(l, "b", 100); got != 40 {
			t.Errorf("another key: %d, want 40", got)
		}
		time.Sleep(time.Second)
		if got := taken(l, "a", 100); got != 4 {
			t.Errorf("a second later: %d, want 4", got)
		}
	})
	NewLimiter[string](0).Drain("a")
}

// A key in use keeps its bucket while others are added and dropped.
func TestLimiter_ManyKeysKeepBusyBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter[string](1)
		sum := 0
		for i := range 2 * limiterKeys {
			if i%100 == 0 {
				sum += taken(l, "a", 1)
			}
			l.Take(strconv.Itoa(i))
		}
		if sum != 10 {
			t.Errorf("%d were taken, want 10", sum)
		}
	})
}

func TestLimiter_Concurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter[string](10)
		var sum atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { sum.Add(int64(taken(l, "a", 100))) })
		}
		all.Wait()
		if sum.Load() != 100 {
			t.Errorf("%d, want 100", sum.Load())
		}
	})
}

func BenchmarkLimiterTake(b *testing.B) {
	l := NewLimiter[string](1 << 30)
	b.ReportAllocs()
	for b.Loop() {
		l.Take("a")
	}
}
