package janitor

import (
	"cmp"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/janitor/ask"
	"rejoin/services/janitor/ledger"
	"rejoin/shared/daemon"
	"rejoin/shared/web"
)

// limitList is the body of GET /v1/limits.
type limitList struct {
	// Acting says whether this janitor acts, and Partitions for how many partitions.
	Acting     bool `json:"acting"`
	Partitions int  `json:"partitions"`
	// Limits are those of all sessions, StreamEvents that of a stream, and MaxAge that of
	// an event, in seconds.
	Limits       ledger.LimitsInfo `json:"limits"`
	StreamEvents *int64            `json:"streamEvents,omitempty"`
	MaxAge       float64           `json:"maxAge,omitempty"`
	// LogBytes is how many bytes the whole log may hold. ClosedGrace and IdleAfter are how many seconds
	// the events of a closed session are kept, and an unused session stays open.
	LogBytes    int64   `json:"logBytes,omitempty"`
	ClosedGrace float64 `json:"closedGrace"`
	IdleAfter   float64 `json:"idleAfter,omitempty"`
	// Version is this janitor's.
	Version string `json:"version"`
	// Stored counts the entries that were ever stored in the log, control entries included.
	Stored uint64 `json:"stored"`
	// Retained are the totals of the whole log.
	Retained ledger.Totals `json:"retained"`
	// Total counts the sessions that are close to a limit; Sessions are the closest.
	Total    int               `json:"total"`
	Sessions []ledger.NearInfo `json:"sessions"`
}

// defaultShare is the share of a limit, in percent, from which on a session is close to it.
const defaultShare = 80

func (s *Service) getLimits(c *fiber.Ctx) error {
	n, err := web.Number(c, "limit", defaultLimit, 1, ask.MaxRows)
	if err != nil {
		return err
	}
	percent, err := web.Number(c, "share", defaultShare, 1, 100)
	if err != nil {
		return err
	}
	answers, err := s.ask(ask.Question{About: ask.Limits, Limit: n, Share: percent})
	if err != nil {
		return err
	}
	settings, acting := s.backend.Log.Settings(), len(s.acting())
	list := limitList{
		Acting: acting > 0, Partitions: acting, Limits: s.sweeper.limits().Info(), MaxAge: max(settings.MaxAge.Seconds(), 0),
		LogBytes: max(settings.MaxBytes, 0), ClosedGrace: s.cfg.ClosedGrace.Seconds(),
		IdleAfter: max(time.Duration(s.cfg.IdleAfter).Seconds(), 0), Version: daemon.CurrentVersion(),
	}
	if settings.MaxEventsPerStream > 0 {
		list.StreamEvents = &settings.MaxEventsPerStream
	}
	f := ledger.Firsts[ledger.NearInfo]{N: n, Compare: compareNear}
	for _, a := range answers {
		f.Add(a.Near...)
		list.Total += a.Total
		list.Retained.Add(a.Retained)
		list.Stored += a.Stored
	}
	list.Sessions, _ = f.All()
	if list.Sessions == nil {
		list.Sessions = []ledger.NearInfo{}
	}
	return answerJSON(c, list)
}

// compareNear puts the closest first.
func compareNear(a, b ledger.NearInfo) int {
	return cmp.Or(cmp.Compare(b.Share, a.Share), strings.Compare(a.Session, b.Session))
}
