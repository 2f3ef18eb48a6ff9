package edge

import (
	"time"

	"rejoin/services/sse-edge/admission"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/web"
)

// errNoRoom is returned by [Service.letIn], which has counted why.
var errNoRoom = web.New(web.CodeUnavailable, "The edge has no room at the moment.")

// letIn admits a request for events of a session. Whoever is let in has to leave
// admission. The error is errNoRoom.
func (s *Service) letIn(c *fiber.Ctx, session string) (asked, error) {
	by := asked{Visit: admission.Visit{Session: session, Address: s.clientAddress(c), Client: s.cfg.Clients.Client(c)}, ctx: c.UserContext(), begun: time.Now()}
	if refused := s.admitted.Enter(by.Visit); refused != "" {
		s.streams.refused(refused)
		return by, errNoRoom
	}
	return by, nil
}
