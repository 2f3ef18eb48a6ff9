package eventlog

import (
	"testing"
	"time"
)

// Alive reports whether the log has heard that there is a connection, and not that it is
// lost.
func (l *Log) Alive() bool { return l.life.Load().ctx.Err() == nil }

// Between a reconnect and the moment that the log hears of it, a request has no
// life whose end it could hear of. If the server goes again, nothing answers it.
func TestARequestThatBelongsToNoLifeIsNotWaitedForLong(t *testing.T) {
	ended := newLife()
	ended.end()
	for name, now := range map[string]*life{"before the first": nil, "between two": ended} {
		l := &Log{}
		l.life.Store(now)
		ctx, cancel := l.request(t.Context())
		until, ok := ctx.Deadline()
		cancel()
		if !ok || time.Until(until) > lookWithin {
			t.Errorf("%s: the request ends at %v", name, until)
		}
	}
}
