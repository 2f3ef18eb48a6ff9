package edge

import (
	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"rejoin/services/sse-edge/delivery"
)

// uncached sets the headers of all answers to who asks for events.
func uncached(c *fiber.Ctx) {
	c.Set(fiber.HeaderCacheControl, "no-store, no-transform")
	c.Set(fiber.HeaderVary, "Accept, Origin")
}

// eventStream sets the headers of an event stream.
func eventStream(h *fasthttp.ResponseHeader) {
	h.SetContentType(mediaStream)
	h.Set("X-Accel-Buffering", "no")
}

// responseHead returns the head of a response whose body ends with the connection, or
// with its last chunk, with the headers that were set so far.
func responseHead(c *fiber.Ctx, chunked bool) []byte {
	var h fasthttp.ResponseHeader
	c.Response().Header.CopyTo(&h)
	h.SetStatusCode(fiber.StatusOK)
	eventStream(&h)
	h.SetConnectionClose()
	if h.SetContentLength(-1); !chunked { // by chunks
		h.SetContentLength(-2) // neither a length nor chunks
		h.Del(fiber.HeaderTransferEncoding)
	}
	return h.AppendBytes(nil)
}

// sendBriefly answers with an event stream of one block, and the end of the connection.
func sendBriefly(c *fiber.Ctx, block []byte) error {
	eventStream(&c.Response().Header)
	c.Context().SetConnectionClose()
	return c.Send(block)
}

// later tells an EventSource to come back; reason is the metric's.
func (s *Service) later(c *fiber.Ctx, reason string) error {
	s.streams.CountRefused(reason)
	return s.sendLater(c)
}

// sendLater is later for what was counted.
func (s *Service) sendLater(c *fiber.Ctx) error {
	uncached(c)
	return sendBriefly(c, delivery.Farewell(s.cfg.Retry))
}
