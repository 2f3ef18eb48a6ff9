// Package logrepeat writes log lines about occurrences that may come with every request: the first
// one at once, the next ones a minute apart, each with the number of occurrences since.
package logrepeat

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// every is the time between two lines about the same.
	every = time.Minute
	// maxKinds bounds how many kinds are counted; everything else counts as one kind.
	maxKinds = 64
)

// Log writes lines to a logger. It is safe for concurrent use.
type Log struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[string]*kind
}

// kind is an occurrence that was logged before.
type kind struct {
	logged time.Time
	since  int // occurrences after that
}

// New returns a log that writes at level warn.
func New(logger *slog.Logger) *Log { return &Log{logger: logger, kinds: map[string]*kind{}} }

// Note writes a line about an occurrence of a kind, unless there was one within a minute. times is
// the number of occurrences, with this one. It reports whether it wrote one.
func (l *Log) Note(ctx context.Context, of, message string, attrs ...slog.Attr) bool {
	times, due := l.count(of)
	if due {
		l.logger.LogAttrs(ctx, slog.LevelWarn, message, append(attrs, slog.Int("times", times))...) //nolint:sloglint // the callers have constants
	}
	return due
}

// Due reports whether the caller may write a line about an occurrence of a kind, since there was none within a minute.
func (l *Log) Due(of string) bool {
	_, due := l.count(of)
	return due
}

// count counts an occurrence, and reports whether a line about it is due.
func (l *Log) count(of string) (times int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	k := l.kinds[of]
	if k == nil {
		if len(l.kinds) >= maxKinds {
			l.forget(now)
		}
		if len(l.kinds) >= maxKinds {
			of = ""
		}
		if k = l.kinds[of]; k == nil {
			k = &kind{logged: now.Add(-every)}
			l.kinds[of] = k
		}
	}
	k.since++
	if now.Sub(k.logged) < every {
		return 0, false
	}
	times, k.since, k.logged = k.since, 0, now
	return times, true
}

// forget forgets the kinds about which a line would be due. The caller holds the lock.
func (l *Log) forget(now time.Time) {
	for of, k := range l.kinds {
		if now.Sub(k.logged) >= every {
			delete(l.kinds, of)
		}
	}
}
