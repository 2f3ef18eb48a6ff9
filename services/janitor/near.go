package janitor

import (
	"cmp"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/session"
	"rejoin/shared/web"
)

// limitList is the body of GET /v1/limits.
type limitList struct {
	// Acting says whether this janitor is the one that acts.
	Acting bool `json:"acting"`
	// Limits are those of all sessions, StreamEvents that of a stream, and MaxAge that of
	// an event, in seconds.
	Limits       limitsInfo `json:"limits"`
	StreamEvents *int64     `json:"streamEvents,omitempty"`
	MaxAge       float64    `json:"maxAge,omitempty"`
	// Retained is what the whole log holds.
	Retained retainedInfo `json:"retained"`
	// Total counts the sessions that are close to a limit; Sessions are the closest.
	Total    int        `json:"total"`
	Sessions []nearInfo `json:"sessions"`
}

// retainedInfo are sums over what is retained. Sessions and streams are those with events.
type retainedInfo struct {
	Sessions int   `json:"sessions"`
	Streams  int   `json:"streams"`
	Events   int   `json:"events"`
	Bytes    int64 `json:"bytes"`
}

// nearInfo is a session that is close to a limit.
type nearInfo struct {
	Session     string     `json:"session"`
	Events      int        `json:"events"`
	Bytes       int64      `json:"bytes"`
	OpenStreams int        `json:"openStreams"`
	Limits      limitsInfo `json:"limits"`
	// Limit is the one that it is closest to, "events", "bytes" or "streams", and Share how
	// much of it is used: more than 1 when it is over.
	Limit string  `json:"limit"`
	Share float64 `json:"share"`
}

// defaultShare is what is close to a limit, in hundredths of it.
const defaultShare = 80

// closest returns the limit of which an account uses the largest share.
func (lim limits) closest(a *account) (limit string, share float64) {
	for _, one := range []struct {
		name     string
		has, max int64
	}{{"events", int64(a.events), lim.maxEvents}, {"bytes", a.bytes, lim.maxBytes}, {"streams", int64(a.open), lim.maxStreams}} {
		if one.max > 0 && float64(one.has)/float64(one.max) > share {
			limit, share = one.name, float64(one.has)/float64(one.max)
		}
	}
	return limit, share
}

// near adds the sessions that use a share of a limit, and returns how many there are.
func (l *ledger) near(f *firsts[nearInfo], share float64, limitsOf func(session, life string) (limits, bool)) (n int) {
	for _, a := range l.accounts {
		if a.events == 0 || a.markers.sealed() {
			continue
		}
		lim, ok := limitsOf(a.session, a.life)
		if !ok {
			continue
		}
		if limit, used := lim.closest(a); used >= share {
			f.add(nearInfo{a.session, a.events, a.bytes, a.open, lim.info(), limit, used})
			n++
		}
	}
	return n
}

func (s *Service) getLimits(c *fiber.Ctx) error {
	n, err := web.Number(c, "limit", defaultLimit, 1, maxLimit)
	if err != nil {
		return err
	}
	percent, err := web.Number(c, "share", defaultShare, 1, 100)
	if err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return err
	}
	settings := s.backend.Log.Settings()
	list := limitList{
		Acting: s.lease.held(), Limits: s.sweeper.limits().info(), MaxAge: max(settings.MaxAge.Seconds(), 0),
	}
	if settings.MaxEventsPerStream > 0 {
		list.StreamEvents = &settings.MaxEventsPerStream
	}
	f := firsts[nearInfo]{n: n, compare: func(a, b nearInfo) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), strings.Compare(a.Session, b.Session))
	}}
	limitsOf := func(name, life string) (limits, bool) {
		rec, indexed := s.backend.Sessions.Session(name)
		return s.sweeper.limitsOf(rec), !indexed || rec.Life == life && rec.State == session.Open
	}
	for _, p := range s.partitions {
		p.with(func(l *ledger) {
			list.Total += l.near(&f, float64(percent)/100, limitsOf)
			list.Retained.add(l.totals)
		})
	}
	list.Sessions, _ = f.all()
	if list.Sessions == nil {
		list.Sessions = []nearInfo{}
	}
	return answerJSON(c, list)
}

func (r *retainedInfo) add(t totals) {
	r.Sessions += t.sessions
	r.Streams += t.streams
	r.Events += t.events
	r.Bytes += t.bytes
}
