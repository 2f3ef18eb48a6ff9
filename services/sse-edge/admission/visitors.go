package admission

import (
	"time"
)

// maxVisited bounds the sessions in either half of visitors: some 20 MB in all with
// the longest names.
const maxVisited = 1 << 16

// visitors remember when each session was last asked for, as Unix time in seconds.
// When there are too many, they forget those that were last asked for the longest ago,
// and know up to when that may have been. Its owner guards it.
//
// Only registered sessions are remembered, so that requests for made-up names push nothing out.
// A client that disconnects counts as a request at that moment.
type visitors struct {
	recent, older map[string]int64 // older: not asked for since recent began
	began         int64            // when recent did
	forgotten     int64            // what is forgotten was not asked for after this
}

func newVisitors() visitors { return visitors{recent: map[string]int64{}} }

// note notes a request for a session.
func (v *visitors) note(session string, now time.Time) {
	if _, ok := v.recent[session]; !ok {
		delete(v.older, session)
		if len(v.recent) >= maxVisited {
			if len(v.older) > 0 {
				v.forgotten = v.began
			}
			v.older, v.recent, v.began = v.recent, map[string]int64{}, now.Unix()
		}
	}
	v.recent[session] = now.Unix()
}

// last returns when a session was asked for, or may have been, last; 0 for never.
func (v *visitors) last(session string) int64 {
	for _, half := range []map[string]int64{v.recent, v.older} {
		if last, ok := half[session]; ok {
			return last
		}
	}
	return v.forgotten
}
