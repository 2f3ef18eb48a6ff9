package mcpedge

import (
	"encoding/json"
	"net/http"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
)

// direct answers with a response, as JSON unless the client prefers a stream.
func direct(c *fiber.Ctx, data []byte) (result string, err error) {
	if subscriber.PrefersStream(c.Get(fiber.HeaderAccept)) {
		subscriber.EventStream(&c.Response().Header)
		return postStream, c.Send(append(sse.AppendData(nil, data), '\n'))
	}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return postJSON, c.Status(http.StatusOK).Send(data)
}

func response(id, result json.RawMessage) []byte {
	return event.MustJSON(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

// pass passes on what the upstream says, which [rpc.ParseAnswer] has checked.
func pass(c *fiber.Ctx, answer rpc.Answer) error {
	for name, values := range answer.Header {
		for _, value := range values {
			c.Response().Header.Add(name, value)
		}
	}
	if len(answer.Data) > 0 {
		c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	}
	return c.Status(answer.Status).Send(answer.Data)
}
