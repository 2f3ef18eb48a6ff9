package edge

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/subscriber"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/mcp"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

const (
	// bridgeTimeout bounds the wait for what a bridge says at once: to initialize, and
	// to what has no response, it passes on what the upstream says.
	bridgeTimeout = 35 * time.Second
	// requestTimeout bounds the wait for a bridge to take a request without a session, or to answer
	// it without the log, for which it has 25 s. A bridge that dies before it is known to no log, so
	// this is when the client has its error: within 30 s, as of any lost call.
	requestTimeout = 28 * time.Second
	// takenTimeout bounds the wait until a bridge has taken a request. What it does not
	// say by then, it may still have taken.
	takenTimeout = 5 * time.Second
	// bridgeRetry is when a client may try again that no bridge listened to.
	bridgeRetry = 3 * time.Second
	// atOnce is how long a streamable call may take to be answered on a connection that
	// is kept. A new connection costs about as much as such a call.
	atOnce = 10 * time.Millisecond
)

// The results of a POST, as the metric's label.
const (
	postOpened      = "opened"      // initialize made a session
	postAccepted    = "accepted"    // no request was in it
	postJSON        = "json"        // answered with JSON
	postStream      = "stream"      // answered with an event stream
	postRefused     = "refused"     // by the edge or the upstream
	postUnavailable = "unavailable" // for a while
)

// mcpPost takes what a client sends: a request is answered with its response, or with
// the stream on which that comes; anything else with 202.
func (s *Service) mcpPost(c *fiber.Ctx, who mcpClient) (err error) {
	result := postRefused
	defer func() { s.countPost(result, err) }()
	p, body, err := s.mcpBody(c, who, true)
	if err != nil {
		return err
	}
	defer func() { err = named(err, p) }()
	if p.modern {
		result, err = s.modernPost(c, who, p, body)
		return err
	}
	if p.opens() {
		result, err = s.mcpOpen(c, who, body)
		return err
	}
	rec, err := s.openSession(c, who)
	if err != nil {
		return err
	}
	call := rpc.Call{Action: rpc.Post, Session: rec.Session, Owner: who.grants.Subject, Header: forwarded(c), Data: body}
	if len(p.ids) == 0 {
		result, err = s.mcpHand(c, call)
		return err
	}
	result, err = s.mcpCall(c, who, rec.Life, call, p)
	return err
}

// countPost counts how a POST was answered.
func (s *Service) countPost(result string, err error) {
	if err != nil && asRefusal(err).status >= http.StatusInternalServerError {
		result = postUnavailable
	}
	s.metrics.posts.WithLabelValues(result).Inc()
}

// named returns an error with the ID of the request that it refuses.
func named(err error, p posted) error {
	r, ok := errors.AsType[*refusal](err)
	if !ok || r.id != nil || r.status == http.StatusNotFound {
		return err
	}
	n := *r
	n.id = p.only()
	return &n
}

// mcpBody reads and checks what a client has posted; answered says whether it takes the
// answer from the response.
func (s *Service) mcpBody(c *fiber.Ctx, who mcpClient, answered bool) (p posted, body []byte, err error) {
	if media, _, _ := strings.Cut(c.Get(fiber.HeaderContentType), ";"); !strings.EqualFold(strings.TrimSpace(media), fiber.MIMEApplicationJSON) {
		return p, nil, web.New(web.CodeUnsupportedMediaType, "The Content-Type must be application/json.")
	}
	if body, err = web.StreamedBody(c).Limited(s.log.Settings().MaxMessageBytes); err != nil {
		return p, nil, err
	}
	p, err = parsePosted(body)
	p.modern = answered && err == nil && who.modern(p, body)
	if known := answered && who.asked == mcp.Modern; !p.modern && !known { // else err says what is wrong, or the batch is refused
		if unsupported := who.unsupported(p.only()); unsupported != nil {
			return p, nil, unsupported
		}
	}
	accept := c.Get(fiber.HeaderAccept)
	switch {
	case err != nil:
		return p, nil, err
	case answered && (!subscriber.Accepts(accept, fiber.MIMEApplicationJSON) || !subscriber.Accepts(accept, subscriber.MediaStream)):
		return p, nil, web.New(web.CodeNotAcceptable, "Accept must list application/json and text/event-stream.")
	}
	if p.modern {
		return p, body, nil
	}
	return p, body, p.check(who.version)
}

// kept are the headers that belong to the connection, to the transport, or to Rejoin: a
// bridge does not get them. Above all not the client's token, which is for the edge.
var kept = []string{
	"Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Cookie", "Expect", "Host", "Keep-Alive",
	headerLastID, headerSession, "Origin", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// forwarded returns the client's headers for the bridge.
func forwarded(c *fiber.Ctx) http.Header {
	h := http.Header{}
	c.Request().Header.VisitAll(func(name, value []byte) { h.Add(string(name), string(value)) })
	for _, name := range kept {
		delete(h, http.CanonicalHeaderKey(name))
	}
	return h
}

// mcpOpen begins a session: the edge names it, the bridge makes it.
func (s *Service) mcpOpen(c *fiber.Ctx, who mcpClient, body []byte) (result string, err error) {
	name := uuid.NewString()
	answer, err := s.initialize(c, who, rpc.Call{Session: name, Data: body})
	if err != nil {
		return postRefused, err
	}
	result = postRefused
	if answer.Status == http.StatusOK && !isError(answer.Data) {
		c.Set(headerSession, name)
		result = postOpened
	}
	return result, pass(c, answer)
}

// initialize has a bridge make a session.
func (s *Service) initialize(c *fiber.Ctx, who mcpClient, call rpc.Call) (rpc.Answer, error) {
	if !who.grants.MayPublish(call.Session) || !who.grants.MaySubscribe(call.Session) {
		return rpc.Answer{}, s.cfg.Access.Insufficient(c)
	}
	call.Action, call.Owner, call.Client, call.Header = rpc.Open, who.grants.Subject, s.cfg.Clients.Client(c), forwarded(c)
	return s.ask(c.UserContext(), call, bridgeTimeout)
}

// mcpHand hands over messages that have no response.
func (s *Service) mcpHand(c *fiber.Ctx, call rpc.Call) (result string, err error) {
	answer, err := s.ask(c.UserContext(), call, bridgeTimeout)
	switch {
	case err != nil:
		return postRefused, err
	case answer.Status != http.StatusAccepted:
		return postRefused, pass(c, answer)
	}
	c.Status(http.StatusAccepted)
	return postAccepted, nil
}

// mcpCall hands over requests, and answers with the stream of what belongs to them. The
// stream's name is new, so whatever it will hold comes behind the place at which the
// reader begins.
func (s *Service) mcpCall(c *fiber.Ctx, who mcpClient, life string, call rpc.Call, p posted) (result string, err error) {
	if call.Stream, err = rpc.NewStream(p.ids, p.batch); err != nil {
		return postRefused, refuseInvalid("Invalid request: " + err.Error())
	}
	req := subscriber.Request{At: window.Place{Session: call.Session, Life: life, Stream: call.Stream}, Start: cursor.Start{Now: true, Fresh: true}}
	st := newForm(who, call.Stream)
	if err := s.mcpBegin(c, who, req, st); err != nil {
		return postRefused, err
	}
	handedOver := false
	defer func() {
		if !handedOver {
			st.Drop()
		}
	}()
	answer, err := s.ask(st.Request.Ctx, call, takenTimeout)
	switch {
	case errors.Is(err, rpc.ErrUnknown): // it may be at work: if it is not, a check will tell
	case err != nil:
		return postRefused, err
	case answer.Status != http.StatusAccepted:
		return postRefused, pass(c, answer)
	}
	result, handedOver, err = s.reply(c, st, !p.batch && s.wantsPlain(c, p.methods[0]))
	return result, err
}

// wantsPlain reports whether a request is answered with JSON when its response is all that there is.
func (s *Service) wantsPlain(c *fiber.Ctx, method string) bool {
	return !slices.Contains(s.cfg.MCPStreamMethods, method) && !subscriber.PrefersStream(c.Get(fiber.HeaderAccept))
}

// reply answers a request that a bridge has taken: with the response alone, if plain and if that comes
// first, else with the stream, which is handed over unless it has ended.
func (s *Service) reply(c *fiber.Ctx, st *mcpForm, plain bool) (result string, handedOver bool, err error) {
	patience := atOnce
	if plain {
		patience = s.cfg.Heartbeat
	}
	if at := s.subs.Streams.CutAt(st.Request); !at.IsZero() {
		patience = min(patience, max(time.Until(at), 0))
	}
	if st.Step, err = s.subs.Poll(s.base, st.Reader, patience); err != nil {
		s.logger.WarnContext(st.Request.Ctx, "an MCP call waits for the log", "session", st.Reader.Place.Session, "stream", st.Reader.Place.Stream, "error", err)
	}
	switch {
	case plain && len(st.Step.Gaps) == 0 && len(st.Step.Items) > 0 && isResponse(messageOf(st.Step.Items[0])):
		response := st.edited(messageOf(st.Step.Items[0]))
		s.subs.Streams.CountTold(st.Reader, st.Step, 1, st.Request)
		if st.modern {
			c.Status(mcp.StatusOf(response))
		}
		c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
		return postJSON, false, c.Send(response)
	case st.Step.Ended:
		return postStream, false, s.whole(c, st)
	}
	return postStream, true, st.handOver(c)
}

// ask asks a bridge, for a request whose span by has. Errors wrap [rpc.ErrUnknown], or are the client's answer.
func (s *Service) ask(by context.Context, call rpc.Call, timeout time.Duration) (rpc.Answer, error) {
	ctx, cancel := context.WithTimeout(s.base, timeout)
	defer cancel()
	span := s.asks(by, &call)
	answer, err := call.Do(ctx, s.nc)
	if err != nil {
		tracing.Fail(span)
	}
	span.End()
	s.logger.DebugContext(by, "a bridge was asked", "session", call.Session, "stream", call.Stream,
		"action", string(call.Action), "bytes", len(call.Data), "status", answer.Status, "error", err)
	switch {
	case err == nil && answer.Status == http.StatusNotFound && call.Action != rpc.Open && call.Action != rpc.Request:
		return answer, errNoSession
	case errors.Is(err, rpc.ErrNobody) && s.hasEnded(ctx, call):
		return answer, errNoSession
	case errors.Is(err, rpc.ErrTooLarge):
		return answer, web.Wrap(err, web.CodeBodyTooLarge, "")
	case errors.Is(err, rpc.ErrNobody) && (call.Action == rpc.Open || call.Action == rpc.Request && !call.Held):
		return answer, &refusal{
			status: http.StatusServiceUnavailable, code: rpc.CodeInternal, retryAfter: bridgeRetry, cause: err,
			message: "There is no MCP server: no bridge is running. --upstream or --upstream-command starts one.",
		}
	case errors.Is(err, rpc.ErrNobody), errors.Is(err, rpc.ErrAway):
		return answer, &refusal{
			status: http.StatusServiceUnavailable, code: rpc.CodeInternal, message: "The MCP server cannot be reached at the moment.", retryAfter: bridgeRetry, cause: err,
		}
	case errors.Is(err, rpc.ErrInvalid):
		return answer, &refusal{status: http.StatusBadGateway, code: rpc.CodeInternal, message: "The bridge's answer makes no sense.", cause: err}
	case errors.Is(err, rpc.ErrUnknown):
		return answer, &refusal{status: http.StatusGatewayTimeout, code: rpc.CodeInternal, message: "The MCP server did not answer in time.", cause: err}
	}
	return answer, err
}

// hasEnded asks the log whether a call's session has ended.
func (s *Service) hasEnded(ctx context.Context, call rpc.Call) bool {
	if call.Action == rpc.Open || call.Action == rpc.Request {
		return false
	}
	rec, err := s.sessions.Get(ctx, call.Session)
	return errors.Is(err, session.ErrNotFound) || err == nil && rec.State != session.Open
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

// whole answers with all of a stream that has ended already, and keeps the connection.
func (s *Service) whole(c *fiber.Ctx, st *mcpForm) error {
	body := st.Opening(c.UserContext(), delivery.Beginning{Position: st.Reader.ResumesAt(st.Step)})
	step := st.Settle(st.Step)
	s.subs.Streams.CountTold(st.Reader, step, len(step.Items), st.Request)
	var room []byte
	for i := range step.Items {
		if st.Rewrites() {
			body, room = st.Event(body, room, &step.Items[i])
		} else {
			body = append(body, step.Items[i].Frame...)
		}
	}
	body = append(body, st.Closing(step)...)
	subscriber.EventStream(&c.Response().Header)
	return c.Send(body)
}

// asks begins the span of what a bridge is asked, which continues it. When it is not
// sampled, the bridge gets the client's own trace context.
func (s *Service) asks(by context.Context, call *rpc.Call) trace.Span {
	_, span := s.traces.Start(by, tracing.NameAsk, trace.SpanKindClient)
	if span.IsRecording() {
		span.SetAttributes(tracing.Ask(rpc.Subject(call.Session), call.Session, call.Stream)...)
		call.Trace = tracing.Of(span.SpanContext())
	} else {
		call.Trace = tracing.Read(call.Header.Values)
	}
	return span
}
