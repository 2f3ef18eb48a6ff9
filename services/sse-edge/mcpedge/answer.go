package mcpedge

import (
	"encoding/json"
	"net/http"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// direct answers with a response, as JSON unless the client prefers a stream. leave, unless it is nil, ends the visit
// that admission counts; see [web.Send].
func direct(c *fiber.Ctx, data []byte, leave func()) (result string, err error) {
	if subscriber.PrefersStream(c.Get(fiber.HeaderAccept)) {
		if err := web.Send(c, append(sse.AppendData(nil, data), '\n'), leave); err != nil {
			return postRefused, err
		}
		subscriber.EventStream(&c.Response().Header)
		return postStream, nil
	}
	if err := web.Send(c, data, leave); err != nil {
		return postRefused, err
	}
	c.Status(http.StatusOK).Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return postJSON, nil
}

func response(id, result json.RawMessage) []byte {
	return event.MustJSON(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

// pass passes on what the upstream says, which [rpc.ParseAnswer] has checked; see [web.Send].
func pass(c *fiber.Ctx, answer rpc.Answer, leave func()) error {
	if err := web.Send(c, answer.Data, leave); err != nil {
		if answer.Status == http.StatusGatewayTimeout { // the MCP server may have done it: no invitation to have it done again
			err = &refusal.Error{Status: answer.Status, Code: rpc.CodeInternal, Message: "What the MCP server has done is unknown.", Cause: err}
		}
		return err
	}
	for name, values := range answer.Header {
		for _, value := range values {
			c.Response().Header.Add(name, value)
		}
	}
	if len(answer.Data) > 0 {
		c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	}
	c.Status(answer.Status)
	return nil
}
