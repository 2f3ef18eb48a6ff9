package subscriber

import (
	"net"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"rejoin/services/sse-edge/delivery"
	"rejoin/shared/web"
)

// Uncached sets the headers of all answers to requests for events.
func Uncached(c *fiber.Ctx) {
	c.Set(fiber.HeaderCacheControl, "no-store, no-transform")
	c.Set(fiber.HeaderVary, "Accept, Origin")
}

// EventStream sets the headers of an event stream.
func EventStream(h *fasthttp.ResponseHeader) {
	h.SetContentType(MediaStream)
	h.Set("X-Accel-Buffering", "no")
}

// responseHead returns the head of a response whose body ends with the connection, or
// with its last chunk, with the headers that were set so far.
func responseHead(c *fiber.Ctx, chunked bool) []byte {
	var h fasthttp.ResponseHeader
	c.Response().Header.CopyTo(&h)
	h.SetStatusCode(fiber.StatusOK)
	EventStream(&h)
	h.SetConnectionClose()
	if h.SetContentLength(-1); !chunked { // by chunks
		h.SetContentLength(-2) // neither a length nor chunks
		h.Del(fiber.HeaderTransferEncoding)
	}
	return h.AppendBytes(nil)
}

// SendBriefly answers with an event stream of one block, and the end of the connection.
func SendBriefly(c *fiber.Ctx, block []byte) error {
	EventStream(&c.Response().Header)
	c.Context().SetConnectionClose()
	return c.Send(block)
}

// SendStream hands a stream over to a worker, after the request. A client of HTTP/1.1 receives it in chunks
// where the connection is Chunked.
func SendStream(c *fiber.Ctx, conn *delivery.Connection, from delivery.Beginning) error {
	conn.Head = responseHead(c, conn.Chunked)
	web.TakeOver(c, func(socket net.Conn) { conn.Hand(socket, from) })
	return nil
}
