package ingest

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/request"
	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

// postEvents answers POST …/events. It returns after the acknowledgement, so that events sent one
// after the other on a connection are stored in that order. With results=each the writer of the
// answer stores them, before the next request of the connection is read.
func (s *Service) postEvents(c *fiber.Ctx) error {
	req, err := readPublish(c)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem.Of(err)
	}
	grants := s.cfg.Access.Grants(c)
	req.message.grants = grants
	req.message.publisher = s.publisher(c, grants)
	if !s.cfg.Access.On() {
		req.message.client = s.cfg.Clients.Client(c)
	}
	body, largest := web.StreamedBody(c), s.backend.Log.Settings().MaxMessageBytes
	if req.media.Lines {
		if !body.Held().Grow(request.LinesBuffer) {
			return web.ErrNoMemory
		}
		lines := request.NewLines(body, req.media.Envelopes, largest, body.Part, s.memory, s.cfg.Clients.Client(c))
		return s.answerBatch(c, req, lines, slowEach)
	}
	text, err := body.Limited(web.BodyLimit(largest))
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem.Of(err)
	}
	if req.media.One() {
		req.message.data = text
		ack, err := s.publish(c.UserContext(), req.message)
		if err != nil {
			return problem.Of(err)
		}
		return c.Status(fiber.StatusCreated).JSON(ack)
	}
	messages, err := s.bodies.Read(text, req.media.Envelopes)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		return problem.Of(err)
	}
	return s.answerBatch(c, req, messages, slowOnce)
}

// answerBatch stores the messages of a batch and answers with a summary, or with a
// line for each.
func (s *Service) answerBatch(c *fiber.Ctx, req publishRequest, from request.Source, slow slowness) error {
	b := &batch{service: s, ctx: c.UserContext(), template: req.message, from: from, stopping: c.Context().Done(), slow: slow, memory: s.memory, client: s.cfg.Clients.Client(c)}
	if !req.each {
		sum, err := s.store(b)
		if err != nil {
			return problem.Of(err)
		}
		return answerSummary(c, sum)
	}
	// After these checks the status is sent.
	if err := b.template.checkNames(); err != nil {
		return problem.Of(err)
	}
	ctx, cancel := s.limit(c.UserContext(), s.cfg.AckTimeout)
	defer cancel()
	rec, err := s.open(ctx, b.template)
	if err == nil {
		err = s.checkStream(ctx, rec, b.template)
	}
	if err == nil {
		err = s.stillOpen(ctx, rec, b.template)
	}
	if err != nil {
		return problem.Of(err)
	}
	conn := c.Context().Conn()
	c.Set(fiber.HeaderContentType, request.MIMELines)
	c.Set(fiber.HeaderCacheControl, "no-store")
	body := web.StreamedBody(c)
	body.Answer(func(w *bufio.Writer) {
		defer body.Held().Release()
		b.answerEach(conn, w)
	})
	return nil
}

// fewErrors is how many errors a summary names when there is no memory for all of them.
const fewErrors = 10

// answerSummary answers with a summary. Its messages are stored by now: without memory it names few errors, which do
// not count.
func answerSummary(c *fiber.Ctx, sum *summary) error {
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	if err := web.Send(c, event.MustJSON(sum), nil); !errors.Is(err, web.ErrNoMemory) {
		return err
	}
	sum.Errors = sum.Errors[:min(len(sum.Errors), fewErrors)]
	for i := range sum.Errors {
		sum.Errors[i].Detail = ""
	}
	return c.JSON(sum)
}

// publishRequest has the headers and parameters of a request to publish.
type publishRequest struct {
	message message // without data
	media   request.MediaType
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
	if req.media, err = request.BodyType(c); err != nil {
		return req, err
	}
	if m.eventType, err = request.Type(request.Values(c, request.HeaderType)); err != nil {
		return req, err
	}
	if m.key, err = request.Key(request.Values(c, request.HeaderKey)); err != nil {
		return req, err
	}
	m.trace = tracing.Read(func(name string) []string { return request.Values(c, name) })
	req.each, err = web.Choice(c, "results", "each", "summary", false)
	return req, err
}

// answerClose answers DELETE /v1/sessions/{session} and DELETE /v1/sessions/{session}/streams/{stream}.
func (s *Service) answerClose(c *fiber.Ctx) error {
	req, err := readClose(c)
	if err != nil {
		return problem.Of(err)
	}
	req.grants = s.cfg.Access.Grants(c)
	req.closer = s.publisher(c, req.grants)
	err = s.close(req)
	s.metrics.closedAs(err)
	if err != nil {
		return problem.Of(err)
	}
	return c.SendStatus(fiber.StatusNoContent)
}

// closeRequest is a request to close a session or a stream.
type closeRequest struct {
	session, stream string // no stream: the whole session
	clear           bool
	grants          auth.Grants // of the caller
	closer          string      // the caller, in whose rate and share it counts
}

func readClose(c *fiber.Ctx) (req closeRequest, err error) {
	if req.session, err = web.Param(c, "session"); err != nil {
		return req, err
	}
	if err := event.CheckSession(req.session); err != nil {
		return req, fmt.Errorf("session: %w", err)
	}
	if c.Params("stream") != "" {
		if req.stream, err = web.Param(c, "stream"); err != nil {
			return req, err
		}
		if err := event.CheckStream(req.stream); err != nil {
			return req, fmt.Errorf("stream: %w", err)
		}
	}
	req.clear, err = web.Choice(c, "clear", "true", "false", false)
	return req, err
}

// close ends a session or stream in the log. After it has returned nil JetStream stores
// no more events of it, from any publisher. The end of a stream stays in the log until its session is
// forgotten, so it counts in the rate of new sessions. Errors wrap [session.ErrNotFound], [problem.ErrBusy],
// [session.ErrUnavailable] or [problem.ErrCloseFailed], or are a [*problem.RateError].
func (s *Service) close(req closeRequest) error {
	ctx, cancel := s.limit(context.Background(), s.cfg.closeTimeout())
	defer cancel()
	if err := s.takeShared(ctx, sharerOf(req.closer), s.cfg.AckTimeout); err != nil {
		return err
	}
	defer s.publishes.Give(sharerOf(req.closer), 1)
	rec, err := s.owned(ctx, req.session, req.grants)
	if err != nil {
		return err
	}
	if req.stream != "" {
		if wait := s.creators.Take(req.closer); wait > 0 {
			return &problem.RateError{Of: "client", What: "closes of streams", Wait: wait}
		}
	}
	if err := s.backend.Sessions.EndOf(ctx, rec, req.stream, req.clear); err != nil {
		return fmt.Errorf("%w: %w", problem.ErrCloseFailed, err)
	}
	s.streams.Ended(req.session, req.stream)
	s.log.Debug("closed", "session", req.session, "stream", req.stream, "clear", req.clear)
	return nil
}
