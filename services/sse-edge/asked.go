package edge

import (
	"context"
	"time"

	"rejoin/services/sse-edge/admission"

	"rejoin/services/sse-edge/cursor"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/web"
)

// asked is a client's request for events, as admission, the diary, traces and the log see it.
type asked struct {
	admission.Visit
	number uint64          // of the connection that it became; 0 for none
	ctx    context.Context //nolint:containedctx // has the request's span, and does not end
	begun  time.Time
}

// errNoRoom is returned by [Service.letIn], which has counted why.
var errNoRoom = web.New(web.CodeUnavailable, "The edge has no room at the moment.")

// letIn admits a request for events of a session. Whoever is let in has to leave
// admission. The error is errNoRoom.
func (s *Service) letIn(c *fiber.Ctx, session string) (asked, error) {
	by := asked{Visit: admission.Visit{Session: session, Address: s.clientAddress(c), Client: s.cfg.Clients.Client(c)}, ctx: c.UserContext(), begun: time.Now()}
	if refused := s.admitted.Enter(by.Visit); refused != "" {
		s.metrics.refused.WithLabelValues(refused).Inc()
		return by, errNoRoom
	}
	return by, nil
}

// told notes that a client was sent the gaps of a step and the first n of its items. More
// than there are is all of them; see [outbox.cut].
func (s *Service) told(r *cursor.Reader, st cursor.Step, n int, by asked) {
	n = min(n, len(st.Items))
	s.metrics.sent.Add(float64(n))
	for _, g := range st.Gaps {
		s.metrics.gaps.WithLabelValues(string(g.Reason)).Inc()
		s.diary.noteGap(r, st, g, by)
		s.logGap(r, g, by)
	}
	if !s.traces.On() {
		return
	}
	for i := range n {
		if it := &st.Items[i]; it.Trail != nil {
			s.deliver(r, it, by)
		}
	}
}
