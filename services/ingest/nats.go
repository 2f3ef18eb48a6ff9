package ingest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.opentelemetry.io/otel/trace"

	"rejoin/services/ingest/problem"
	"rejoin/services/ingest/request"
	"rejoin/shared/event"
	"rejoin/shared/inbox"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

const (
	// natsService is the name of the service on NATS, and of its queue group.
	natsService = "ingest"
	// natsPrefix stands before the tokens of session and stream.
	natsPrefix = "mcp.ingest."
	// flushTimeout bounds the wait for the server to know the service.
	flushTimeout = time.Second
)

// listen offers the service on NATS, to all users that may send to its subjects there:
// requests to mcp.ingest.<session>.<stream>, whose answers are those of the HTTP
// resource; requests to mcp.ingest.<session>, which are answered with the session; and the
// discovery that NATS services have. Requests are shared out among all ingests.
func (s *Service) listen() (micro.Service, error) {
	svc, err := micro.AddService(s.backend.Conn, micro.Config{
		Name: natsService, Version: "1.0.0", QueueGroup: natsService,
		Description: "Writes messages to the log.",
	})
	if err != nil {
		return nil, fmt.Errorf("cannot offer the service on NATS: %w", err)
	}
	err = errors.Join(
		svc.AddEndpoint("publish", s.asked(s.answer), micro.WithEndpointSubject(natsPrefix+"*.*"),
			micro.WithEndpointMetadata(map[string]string{"headers": strings.Join([]string{fiber.HeaderContentType, request.HeaderKey, request.HeaderType, tracing.HeaderParent, tracing.HeaderState}, ", ")})),
		svc.AddEndpoint("session", s.asked(s.answerSession), micro.WithEndpointSubject(natsPrefix+"*")),
	)
	if err != nil {
		_ = svc.Stop() // the other error says why
		return nil, fmt.Errorf("cannot offer the service on NATS: %w", err)
	}
	// HTTP is served only after this: a publisher that gets an answer there finds the service on NATS as well.
	// Without a connection the service is found when there is one again.
	_ = s.backend.Conn.FlushTimeout(flushTimeout)
	return svc, nil
}

// asked returns a handler that calls answer, which must call visits.leave. It ignores requests whose reply is
// no inbox: an answer to any other subject would be stored in the log, or ask another
// service, and a consumer delivers with a reply of its own.
func (s *Service) asked(answer func(micro.Request)) micro.Handler {
	return micro.HandlerFunc(func(req micro.Request) {
		switch {
		case !inbox.Is(req.Reply()):
			s.log.Debug("a request on NATS is ignored: its reply is no inbox", "subject", req.Subject(), "reply", req.Reply())
		case !s.visits.enter():
			s.refuse(req, problem.ErrStopping)
		default:
			answer(req)
		}
	})
}

// answer has a request on NATS answered, and does not wait for that. Requests about one
// session that one connection sends to this ingest are stored in their order.
func (s *Service) answer(req micro.Request) {
	m, media, err := readRequest(req)
	var left func()
	if err == nil {
		left, err = s.hold(m)
	}
	if err != nil {
		s.visits.leave()
		s.metrics.publishedAs(stored{}, err)
		s.refuse(req, err)
		return
	}
	s.lanes.do(m.session, func() {
		s.answerNext(req, m, media, func() {
			left()
			s.visits.leave()
		})
	})
}

// hold takes a slot among the requests on NATS, and memory for the message; left gives both
// back. NATS does not name the publisher, so the session has a share of them. The error
// is problem.ErrBusy or [web.ErrNoMemory].
func (s *Service) hold(m message) (left func(), err error) {
	session, bytes := m.sharer(), int64(len(m.data))
	if !s.natsRequests.Take(session, 1) {
		return nil, problem.ErrBusy
	}
	if !s.memory.Take(session, bytes) {
		s.natsRequests.Give(session, 1)
		return nil, web.ErrNoMemory
	}
	return func() {
		s.memory.Give(session, bytes)
		s.natsRequests.Give(session, 1)
	}, nil
}

// answerNext answers a request when it is its session's turn: it returns once a message is
// begun, or an array is stored. Then it calls left, or a goroutine of its own does.
func (s *Service) answerNext(req micro.Request, m message, media request.MediaType, left func()) {
	defer func() { left() }()
	ctx, span := s.traces.Continue(context.Background(), m.trace, tracing.Ingest.Name, trace.SpanKindConsumer)
	if span.IsRecording() {
		span.SetAttributes(tracing.Ingest.On(req.Subject(), m.session, m.stream)...)
	}
	if !media.One() {
		defer span.End()
		s.answerArray(ctx, req, m, media)
		return
	}
	under, err := s.send(ctx, &m, 0)
	if err != nil {
		s.count(ctx, m, stored{}, err)
		span.End()
		s.refuse(req, err)
		return
	}
	leave := left
	left = func() {} // the goroutine leaves
	go func() {
		defer leave()
		defer span.End()
		ack, err := under.awaitCounted()
		if err != nil {
			s.refuse(req, err)
			return
		}
		s.respondJSON(req, ack)
	}()
}

// answerSession has a request for a session answered, and does not wait for the log.
func (s *Service) answerSession(req micro.Request) {
	name, err := event.SessionName(strings.TrimPrefix(req.Subject(), natsPrefix))
	if err != nil {
		err = fmt.Errorf("session: %w", err)
	} else if !s.natsRequests.Take(name, 1) {
		err = problem.ErrBusy
	}
	if err != nil {
		s.visits.leave()
		s.refuse(req, err)
		return
	}
	go func() {
		defer s.visits.leave()
		defer s.natsRequests.Give(name, 1)
		s.lookUp(req, name)
	}()
}

// lookUp answers a request for a session as POST /v1/sessions is answered: a publisher that writes straight to the
// log needs the life. It opens none. It answers only once a generation has begun for the server that is
// connected, so that an event that is published then takes no earlier event's ID.
func (s *Service) lookUp(req micro.Request, name string) {
	ctx, cancel := s.limit(context.Background(), s.cfg.AckTimeout)
	defer cancel()
	rec, err := s.backend.Sessions.Get(ctx, name)
	if err == nil {
		err = s.backend.Log.AwaitGeneration(ctx, name)
	}
	if err != nil {
		s.refuse(req, err)
		return
	}
	s.respondJSON(req, s.answerOf(rec))
}

// arraysAtOnce is how many arrays on NATS are stored at once, each with batchAhead messages
// under way: most of --max-in-flight, so that single messages find a slot.
func arraysAtOnce(inFlight int) int { return max(inFlight*3/4/batchAhead, 1) }

// answerArray stores an array when there is a slot for it. When the service stops, the array's remaining messages
// are not stored.
func (s *Service) answerArray(ctx context.Context, req micro.Request, m message, media request.MediaType) {
	select {
	case s.arrays <- struct{}{}:
		defer func() { <-s.arrays }()
	case <-s.visits.over:
		s.refuse(req, problem.ErrStopping)
		return
	}
	from, err := s.bodies.Read(m.data, media.Envelopes)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		s.refuse(req, err)
		return
	}
	// It does not wait for a rate: the requests after it would wait too.
	sum, err := s.store(&batch{service: s, ctx: ctx, template: m, from: from, stopping: s.visits.over, slow: slowNever})
	if err != nil {
		s.refuse(req, err)
		return
	}
	s.respondJSON(req, sum)
}

// refuse answers with the status in the header Nats-Service-Error-Code, the problem's
// code in Nats-Service-Error, and the problem document.
func (s *Service) refuse(req micro.Request, err error) {
	p := problem.Of(err)
	s.respond(req, event.MustJSON(p), nats.Header{micro.ErrorHeader: {string(p.Code)}, micro.ErrorCodeHeader: {strconv.Itoa(p.Status)}})
}

// respond answers a request. A request's own methods are for its handler's goroutine alone: they
// keep the error for the statistics of the service, which are made when the handler returns.
//
// See docs/upstream/0004.
func (s *Service) respond(req micro.Request, body []byte, header nats.Header) {
	// A failed answer has no other way to its publisher.
	_ = s.backend.Conn.PublishMsg(&nats.Msg{Subject: req.Reply(), Header: header, Data: body})
}

// respondJSON answers a request with a value that [event.MustJSON] takes.
func (s *Service) respondJSON(req micro.Request, v any) { s.respond(req, event.MustJSON(v), nil) }

func readRequest(req micro.Request) (m message, media request.MediaType, err error) {
	tokens := strings.Split(strings.TrimPrefix(req.Subject(), natsPrefix), ".")
	if len(tokens) != 2 {
		return m, media, fmt.Errorf("%w: %q", event.ErrInvalidName, req.Subject())
	}
	if m.session, err = event.SessionName(tokens[0]); err != nil {
		return m, media, fmt.Errorf("session: %w", err)
	}
	if m.stream, err = event.StreamName(tokens[1]); err != nil {
		return m, media, fmt.Errorf("stream: %w", err)
	}
	values := func(name string) []string { return req.Headers().Values(name) }
	if m.key, err = request.Key(values(request.HeaderKey)); err != nil {
		return m, media, err
	}
	if m.eventType, err = request.Type(values(request.HeaderType)); err != nil {
		return m, media, err
	}
	declared, given, err := request.Single(fiber.HeaderContentType, values(fiber.HeaderContentType))
	if err == nil && given {
		media, err = request.MediaOf(declared)
	}
	if err == nil && media.Lines {
		err = web.New(web.CodeUnsupportedMediaType, "Many messages come as an array on NATS: "+request.MIMEMessages+" or "+request.MIMEEnvelopes+".")
	}
	if err != nil {
		return m, media, err
	}
	m.trace = tracing.Read(values)
	m.data, m.trusted = req.Data(), true
	return m, media, nil
}
