package system

import (
	"context"
	"fmt"
	"net"

	"github.com/gofiber/fiber/v2"
)

// bareFiber is the argument that makes this program answer every request with 201.
const bareFiber = "fiber"

// serveFiber serves an ingest in front of nothing: a Fiber handler that takes the body
// and answers 201. The first line that it prints is its address.
func serveFiber() error {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	app.Post("/v1/sessions/:session/streams/:stream/events", func(c *fiber.Ctx) error {
		_ = c.Body()
		return c.SendStatus(fiber.StatusCreated)
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return app.Listener(ln)
}

// StartFiber starts it in a process of its own, and returns its address.
func StartFiber(ctx context.Context) (addr string, stop func(), err error) {
	cmd, addr, err := StartSelf(ctx, bareFiber)
	if err != nil {
		return "", nil, err
	}
	return addr, func() { End(cmd) }, nil
}
