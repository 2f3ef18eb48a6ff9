package ingest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
	"rejoin/shared/tracing"
)

const (
	// natsService is the name of the service on NATS, and of its queue group.
	natsService = "ingest"
	// natsPrefix stands before the tokens of session and stream.
	natsPrefix = "mcp.ingest."
	// flushTimeout bounds the wait for the server to know the service.
	flushTimeout = time.Second
)

// listen offers the service on NATS, to whoever may send to its subjects there:
// requests to mcp.ingest.<session>.<stream>, whose answers are those of the HTTP
// resource, and the discovery that NATS services have. Requests are shared out among
// all ingests.
func (s *Service) listen() (micro.Service, error) {
	svc, err := micro.AddService(s.backend.Conn, micro.Config{
		Name: natsService, Version: "1.0.0", QueueGroup: natsService,
		Description: "Writes MCP messages to the log.",
	})
	if err != nil {
		return nil, fmt.Errorf("cannot offer the service on NATS: %w", err)
	}
	err = svc.AddEndpoint("publish", micro.HandlerFunc(s.answer), micro.WithEndpointSubject(natsPrefix+"*.*"),
		micro.WithEndpointMetadata(map[string]string{"headers": strings.Join([]string{headerKey, headerType, tracing.HeaderParent, tracing.HeaderState}, ", ")}))
	if err != nil {
		_ = svc.Stop() // the other error says why
		return nil, fmt.Errorf("cannot offer the service on NATS: %w", err)
	}
	// Who gets an answer over HTTP, which comes later, finds the service on NATS as well.
	// Without a connection it is found when there is one again.
	_ = s.backend.Conn.FlushTimeout(flushTimeout)
	return svc, nil
}

// answer answers a request on NATS. It returns once the message is begun: requests of
// one connection that reach the same ingest are stored in their order.
func (s *Service) answer(req micro.Request) {
	if !s.visits.enter() {
		refuse(req, errStopping)
		return
	}
	left := s.visits.leave
	defer func() { left() }()
	m, err := readRequest(req)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		refuse(req, err)
		return
	}
	ctx, span := s.traces.Continue(context.Background(), m.trace, tracing.NameIngest, trace.SpanKindConsumer)
	if span.IsRecording() {
		span.SetAttributes(tracing.Ingest(req.Subject(), m.session, m.stream)...)
	}
	if isArray(m.data) {
		defer span.End()
		s.answerArray(ctx, req, m)
		return
	}
	under, err := s.begin(ctx, m)
	if err != nil {
		span.End()
		refuse(req, err)
		return
	}
	left = func() {} // the goroutine leaves
	go func() {
		defer s.visits.leave()
		defer span.End()
		ack, err := under.wait()
		if err != nil {
			refuse(req, err)
			return
		}
		_ = req.RespondJSON(ack) // nobody is told that nobody can be told
	}()
}

// visits are the requests that are being answered. Safe for concurrent use.
type visits struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// enter reports whether there is still somebody to answer; leave follows then.
func (v *visits) enter() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.inside.Add(1)
	}
	return !v.closed
}

func (v *visits) leave() { v.inside.Done() }

// close lets nobody in any more, and waits for those who are.
func (v *visits) close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.inside.Wait()
}

func (s *Service) answerArray(ctx context.Context, req micro.Request, m message) {
	from, err := newArray(m.data)
	if err != nil {
		s.metrics.publishedAs(stored{}, err)
		refuse(req, err)
		return
	}
	sum, err := s.store(&batch{service: s, ctx: ctx, template: m, from: from, slow: slowNever}) // others wait for their turn
	if err != nil {
		refuse(req, err)
		return
	}
	_ = req.RespondJSON(sum)
}

// refuse answers with the status in the header Nats-Service-Error-Code, the problem's
// code in Nats-Service-Error, and the problem document.
func refuse(req micro.Request, err error) {
	p := problem(err)
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // a problem always can be marshalled
	}
	_ = req.Error(strconv.Itoa(p.Status), string(p.Code), body)
}

func readRequest(req micro.Request) (m message, err error) {
	tokens := strings.Split(strings.TrimPrefix(req.Subject(), natsPrefix), ".")
	if len(tokens) != 2 {
		return m, fmt.Errorf("%w: %q", event.ErrInvalidName, req.Subject())
	}
	if m.session, err = event.SessionName(tokens[0]); err != nil {
		return m, fmt.Errorf("session: %w", err)
	}
	if m.stream, err = event.StreamName(tokens[1]); err != nil {
		return m, fmt.Errorf("stream: %w", err)
	}
	values := func(name string) []string { return req.Headers().Values(name) }
	if m.key, err = keyOf(values(headerKey)); err != nil {
		return m, err
	}
	if m.eventType, err = typeOf(values(headerType)); err != nil {
		return m, err
	}
	m.trace = tracing.Read(values)
	m.data, m.trusted = req.Data(), true
	return m, nil
}
