package edge

import (
	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/admission"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/web"
)

// turnAway answers a request that is refused. A temporary error must not stop an
// EventSource for good.
//
// While a JWKS cannot be fetched, an unknown key may be a new one: 503, and for an EventSource
// 200 and the end of the stream, since any other status stops it for good.
func (s *Service) turnAway(c *fiber.Ctx, err error) error {
	if web.AsProblem(err).Code != web.CodeUnavailable || subscriber.FormOf(c.Get(fiber.HeaderAccept)) != subscriber.FormStream {
		return err
	}
	session, stream := web.Place(c)
	by := delivery.Request{Visit: admission.Visit{Address: s.subs.ClientAddress(c)}, Ctx: c.UserContext()}
	s.subs.SentAway(by, window.Place{Session: session, Stream: stream}, err)
	return s.later(c, "unavailable")
}

// slowDown answers a client that connects too often. It does so before the check of the
// token, which is the work that the limit prevents.
func (s *Service) slowDown(c *fiber.Ctx) error {
	const reason = "address_rate"
	if subscriber.FormOf(c.Get(fiber.HeaderAccept)) == subscriber.FormStream {
		return s.later(c, reason)
	}
	s.subs.Connections.CountRefused(reason)
	return web.New(web.CodeRateLimited, "This address connects too often.")
}

// later has an EventSource reconnect; reason is the metric's label.
func (s *Service) later(c *fiber.Ctx, reason string) error {
	s.subs.Connections.CountRefused(reason)
	return s.sendLater(c)
}

// sendLater is later for a refusal that was counted already.
func (s *Service) sendLater(c *fiber.Ctx) error {
	subscriber.Uncached(c)
	return subscriber.SendBriefly(c, delivery.Farewell(s.cfg.Retry))
}
