package ingest

import (
	"context"
	"fmt"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
	"rejoin/shared/event"
)

// postEvent answers POST …/events. It returns after the acknowledgement, so that
// events sent one after the other on a connection are stored in that order.
func (s *Service) postEvent(c *fiber.Ctx) error {
	m, err := readMessage(c)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem(err)
	}
	ack, err := s.publish(context.Background(), m)
	if err != nil {
		return problem(err)
	}
	return c.Status(fiber.StatusCreated).JSON(ack)
}

func readMessage(c *fiber.Ctx) (m message, err error) {
	if m.session, err = web.Param(c, "session"); err != nil {
		return m, err
	}
	if m.stream, err = web.Param(c, "stream"); err != nil {
		return m, err
	}
	if m.data, err = jsonBody(c); err != nil {
		return m, err
	}
	if m.eventType, err = eventType(c); err != nil {
		return m, err
	}
	if m.key, err = idempotencyKey(c); err != nil {
		return m, err
	}
	m.trace = traceparent(c)
	return m, nil
}

// closeSession answers DELETE /v1/sessions/{session}.
func (s *Service) closeSession(c *fiber.Ctx) error { return s.answerClose(c, false) }

// closeStream answers DELETE /v1/sessions/{session}/streams/{stream}.
func (s *Service) closeStream(c *fiber.Ctx) error { return s.answerClose(c, true) }

func (s *Service) answerClose(c *fiber.Ctx, ofStream bool) error {
	key, err := readClose(c, ofStream)
	if err != nil {
		return problem(err)
	}
	this, err := s.closes.start(key)
	if err != nil {
		return problem(err)
	}
	<-this.done // bounded by the close's own time-out
	if this.err != nil {
		return problem(this.err)
	}
	return c.SendStatus(fiber.StatusNoContent)
}

func readClose(c *fiber.Ctx, ofStream bool) (key closeKey, err error) {
	if key.session, err = web.Param(c, "session"); err != nil {
		return key, err
	}
	if err := event.CheckSession(key.session); err != nil {
		return key, fmt.Errorf("session: %w", err)
	}
	if ofStream {
		if key.stream, err = web.Param(c, "stream"); err != nil {
			return key, err
		}
		if err := event.CheckStream(key.stream); err != nil {
			return key, fmt.Errorf("stream: %w", err)
		}
	}
	key.clear, err = web.Choice(c, "clear", "true", "false", false)
	return key, err
}
