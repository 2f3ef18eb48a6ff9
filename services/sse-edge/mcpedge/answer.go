package mcpedge

import (
	"encoding/json"
	"net/http"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/sse-edge/subscriber"
	"rejoin/shared/event"
	"rejoin/shared/rpc"
	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// send answers with a body. It takes of its client's memory until its last byte is written; then leave,
// unless it is nil, ends the visit that admission counts. The error is [web.ErrNoMemory]: leave is not
// called then.
func (s *Service) send(c *fiber.Ctx, body []byte, leave func()) error {
	held := s.memory.Part(s.subs.Config.Clients.Client(c))
	if !held.Grow(int64(len(body))) {
		return web.ErrNoMemory
	}
	return web.Send(c, body, func() {
		held.Release()
		if leave != nil {
			leave()
		}
	})
}

// direct answers with a response, as JSON unless the client prefers a stream; see send.
func (s *Service) direct(c *fiber.Ctx, data []byte, leave func()) (result string, err error) {
	if subscriber.PrefersStream(c.Get(fiber.HeaderAccept)) {
		if err := s.send(c, append(sse.AppendData(nil, data), '\n'), leave); err != nil {
			return postRefused, err
		}
		subscriber.EventStream(&c.Response().Header)
		return postStream, nil
	}
	if err := s.send(c, data, leave); err != nil {
		return postRefused, err
	}
	c.Status(http.StatusOK).Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return postJSON, nil
}

func response(id, result json.RawMessage) []byte {
	return event.MustJSON(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

// pass passes on what the upstream says, which [rpc.ParseAnswer] has checked; see send.
func (s *Service) pass(c *fiber.Ctx, answer rpc.Answer, leave func()) error {
	if err := s.send(c, answer.Data, leave); err != nil {
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
