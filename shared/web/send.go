package web

import (
	"bytes"
	"sync"

	"github.com/gofiber/fiber/v2"
)

// Send answers with a body, and calls done once, when all of it was written to the connection
// or that has gone: what is counted for a client counts until then.
func Send(c *fiber.Ctx, body []byte, done func()) error {
	c.Context().SetBodyStream(&sent{*bytes.NewReader(body), sync.OnceFunc(done)}, len(body))
	return nil
}

// sent is a body that is being written.
type sent struct {
	bytes.Reader
	done func()
}

// Close is called by fasthttp after the last byte, and when there is none to write any more.
func (s *sent) Close() error {
	s.done()
	return nil
}
