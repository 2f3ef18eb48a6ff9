package janitor

import (
	"cmp"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

// limitList is the body of GET /v1/limits.
type limitList struct {
	// Acting says whether this janitor is the one that acts.
	Acting bool `json:"acting"`
	// Limits are those of all sessions, StreamEvents that of a stream, and MaxAge that of
	// an event, in seconds.
	Limits       ledger.LimitsInfo `json:"limits"`
	StreamEvents *int64            `json:"streamEvents,omitempty"`
	MaxAge       float64           `json:"maxAge,omitempty"`
	// Retained is what the whole log holds.
	Retained retainedInfo `json:"retained"`
	// Total counts the sessions that are close to a limit; Sessions are the closest.
	Total    int               `json:"total"`
	Sessions []ledger.NearInfo `json:"sessions"`
}

// retainedInfo are sums over what is retained. Sessions and streams are those with events.
type retainedInfo struct {
	Sessions int   `json:"sessions"`
	Streams  int   `json:"streams"`
	Events   int   `json:"events"`
	Bytes    int64 `json:"bytes"`
}

// defaultShare is what is close to a limit, in hundredths of it.
const defaultShare = 80

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
		Acting: s.lease.Held(), Limits: s.sweeper.limits().Info(), MaxAge: max(settings.MaxAge.Seconds(), 0),
	}
	if settings.MaxEventsPerStream > 0 {
		list.StreamEvents = &settings.MaxEventsPerStream
	}
	f := ledger.Firsts[ledger.NearInfo]{N: n, Compare: func(a, b ledger.NearInfo) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), strings.Compare(a.Session, b.Session))
	}}
	limitsOf := func(name, life string) (ledger.Limits, bool) {
		rec, indexed := s.backend.Sessions.Session(name)
		return s.sweeper.limitsOf(rec), !indexed || rec.Life == life && rec.State == session.Open
	}
	for _, p := range s.partitions {
		p.With(func(l *ledger.Ledger) {
			list.Total += l.Near(&f, float64(percent)/100, limitsOf)
			list.Retained.add(l.Totals)
		})
	}
	list.Sessions, _ = f.All()
	if list.Sessions == nil {
		list.Sessions = []ledger.NearInfo{}
	}
	return answerJSON(c, list)
}

func (r *retainedInfo) add(t ledger.Totals) {
	r.Sessions += t.Sessions
	r.Streams += t.Streams
	r.Events += t.Events
	r.Bytes += t.Bytes
}
