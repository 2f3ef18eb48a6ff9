package mcpedge

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/mcp"
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

// pass passes on the upstream's answer, which [rpc.ParseAnswer] has checked; see [web.Send].
func pass(c *fiber.Ctx, answer rpc.Answer, leave func()) error {
	if err := web.Send(c, answer.Data, leave); err != nil {
		if answer.Status == http.StatusGatewayTimeout {
			err = notAgain(err, "What the MCP server has done is unknown.")
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

// served returns an error about the answer to requests that the MCP server has served.
func served(err error, methods ...string) error {
	if errors.Is(err, web.ErrNoMemory) && slices.Contains(methods, mcp.MethodCallTool) {
		err = notAgain(err, "The MCP server has run the tool, and there is no memory for its result.")
	}
	return err
}

// notAgain returns the answer to a client that must not repeat its request, which would run a tool twice, though the
// error is temporary.
func notAgain(err error, message string) error {
	return &refusal.Error{Status: http.StatusGatewayTimeout, Code: rpc.CodeInternal, Message: message, Cause: err}
}
