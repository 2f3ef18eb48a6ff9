package ingest

import (
	"bufio"
	"context"
	"fmt"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
	"rejoin/shared/event"
	"rejoin/shared/tracing"
)

// postEvents answers POST …/events. It returns after the acknowledgement, so that
// events sent one after the other on a connection are stored in that order.
func (s *Service) postEvents(c *fiber.Ctx) error {
	req, err := readPublish(c)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem(err)
	}
	grants := s.cfg.Access.Grants(c)
	req.message.owner, req.message.expires = grants.Subject, grants.Expires
	req.message.publisher = s.publisher(c, grants)
	body, largest := web.StreamedBody(c), s.backend.Log.Settings().MaxMessageBytes
	if req.media == mediaNDJSON {
		return s.answerBatch(c, req, newLines(body, largest, body.Part), slowEach)
	}
	text, err := body.Limited(web.BodyLimit(largest))
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem(err)
	}
	if !isArray(text) {
		req.message.data = text
		ack, err := s.publish(c.UserContext(), req.message)
		if err != nil {
			return problem(err)
		}
		return c.Status(fiber.StatusCreated).JSON(ack)
	}
	messages, err := newArray(text)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem(err)
	}
	return s.answerBatch(c, req, messages, slowOnce)
}

// answerBatch stores the messages of a batch and answers with a summary, or with a
// line for each.
func (s *Service) answerBatch(c *fiber.Ctx, req publishRequest, from source, slow slowness) error {
	b := &batch{service: s, ctx: c.UserContext(), template: req.message, from: from, stopping: c.Context().Done(), slow: slow}
	if !req.each {
		sum, err := s.store(b)
		if err != nil {
			return problem(err)
		}
		return c.JSON(sum)
	}
	// Later than this there is no status any more.
	if err := b.template.checkNames(); err != nil {
		return problem(err)
	}
	ctx, cancel := context.WithTimeout(c.UserContext(), s.cfg.AckTimeout)
	defer cancel()
	if _, err := s.open(ctx, b.template); err != nil {
		return problem(err)
	}
	conn := c.Context().Conn()
	c.Set(fiber.HeaderContentType, mimeNDJSON)
	c.Set(fiber.HeaderCacheControl, "no-store")
	web.StreamedBody(c).Keep()
	c.Context().SetBodyStreamWriter(func(w *bufio.Writer) { b.answerEach(conn, w) })
	return nil
}

// publishRequest is what a request says of its messages.
type publishRequest struct {
	message message // without data
	media   mediaType
	each    bool
}

func readPublish(c *fiber.Ctx) (req publishRequest, err error) {
	m := &req.message
	if m.session, err = web.Param(c, "session"); err != nil {
		return req, err
	}
	if m.stream, err = web.Param(c, "stream"); err != nil {
		return req, err
	}
	if req.media, err = bodyType(c); err != nil {
		return req, err
	}
	if m.eventType, err = typeOf(values(c, headerType)); err != nil {
		return req, err
	}
	if m.key, err = keyOf(values(c, headerKey)); err != nil {
		return req, err
	}
	m.trace = tracing.Read(func(name string) []string { return values(c, name) })
	req.each, err = web.Choice(c, "results", "each", "summary", false)
	return req, err
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
	if err := s.owned(c, key.session); err != nil {
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
