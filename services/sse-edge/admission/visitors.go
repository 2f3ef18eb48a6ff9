package admission

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxVisited bounds the sessions in visitors: some 30 MB with the longest names.
const maxVisited = 1 << 17

// visitors remember when each session was last requested, as Unix time in seconds.
// Above the bound they drop the session with the oldest request, and keep the time of
// that request. The owner guards them.
//
// Only registered sessions are remembered, so that requests for made-up names evict no session.
// A client that disconnects counts as a request at that moment.
type visitors struct {
	seen    *simplelru.LRU[string, int64]
	dropped int64 // no dropped session was requested after this time
}

func newVisitors() *visitors {
	v := &visitors{}
	v.seen, _ = simplelru.NewLRU(maxVisited, func(_ string, last int64) { v.dropped = last }) // fails only without a size
	return v
}

// note notes a request for a session.
func (v *visitors) note(session string, now time.Time) { v.seen.Add(session, now.Unix()) }

// last returns when a session was last requested, or may have been; 0 for never.
func (v *visitors) last(session string) int64 {
	if last, ok := v.seen.Peek(session); ok {
		return last
	}
	return v.dropped
}
