package mcpedge

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gofiber/fiber/v2"
	"go.opentelemetry.io/otel/trace"

	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/mcpedge/refusal"
	"rejoin/shared/natsconn"
	"rejoin/shared/rpc"
	"rejoin/shared/session"
	"rejoin/shared/tracing"
	"rejoin/shared/web"
)

const (
	// bridgeTimeout bounds the wait for a bridge's immediate answer: to initialize, and to
	// messages without a response, it passes on the upstream's answer.
	bridgeTimeout = 35 * time.Second
	// requestTimeout bounds the wait for a bridge to take a request without a session, or to answer
	// it without the log, for which it has 25 s. The log has no trace of a bridge that dies before that,
	// so the client receives its error then: within 30 s, as for any lost call.
	requestTimeout = 28 * time.Second
	// takenTimeout bounds the wait until a bridge has taken a request. Without an answer by
	// then, the bridge may still have taken it.
	takenTimeout = 5 * time.Second
	// bridgeWait is how long a request waits for a bridge to be available (docs/adr/0048).
	bridgeWait = 4 * time.Second
	// bridgeRetry is how long a client waits before it tries again when no bridge listened.
	bridgeRetry = 3 * time.Second
)

// ask asks a bridge, for a request whose span by has. Errors wrap [rpc.ErrUnknown], or are the client's answer.
func (s *Service) ask(by context.Context, ask rpc.Ask, timeout time.Duration) (rpc.Answer, error) {
	span := s.beginAsk(by, &ask)
	answer, err := s.askUntilTaken(ask, timeout)
	if err != nil {
		tracing.Fail(span)
	}
	span.End()
	s.logger.DebugContext(by, "a bridge was asked", "session", ask.Session, "stream", ask.Stream,
		"action", string(ask.Action), "bytes", len(ask.Data), "status", answer.Status, "error", err)
	switch {
	case err == nil && answer.Status == http.StatusNotFound && ask.Action != rpc.Open && ask.Action != rpc.Request:
		return answer, refusal.ErrNoSession
	case errors.Is(err, rpc.ErrTooLarge):
		return answer, web.Wrap(err, web.CodeBodyTooLarge, "")
	case errors.Is(err, rpc.ErrNobody) && (ask.Action == rpc.Open || ask.Action == rpc.Request && !ask.Held):
		return answer, &refusal.Error{
			Status: http.StatusServiceUnavailable, Code: rpc.CodeInternal, RetryAfter: bridgeRetry, Cause: err,
			Message: "There is no MCP server: no bridge is running. --upstream or --upstream-command starts one.",
		}
	case errors.Is(err, rpc.ErrNobody), errors.Is(err, rpc.ErrAway):
		return answer, &refusal.Error{
			Status: http.StatusServiceUnavailable, Code: rpc.CodeInternal, Message: "The MCP server cannot be reached at the moment.", RetryAfter: bridgeRetry, Cause: err,
		}
	case errors.Is(err, rpc.ErrInvalid):
		return answer, &refusal.Error{Status: http.StatusBadGateway, Code: rpc.CodeInternal, Message: "The bridge's answer makes no sense.", Cause: err}
	case errors.Is(err, rpc.ErrUnknown):
		return answer, notAgain(err, "The MCP server did not answer in time.")
	}
	return answer, err
}

// askUntilTaken asks a bridge. A request that was not taken is sent again, for as long as a bridge takes to be
// replaced or to connect again. The time-out begins with each question.
func (s *Service) askUntilTaken(ask rpc.Ask, timeout time.Duration) (rpc.Answer, error) {
	pauses, done := context.WithTimeout(s.subs.Base, s.bridgeWait)
	defer done()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		answer, err := s.askOnce(ask, timeout)
		again := answer.NotTaken || errors.Is(err, rpc.ErrNobody) || errors.Is(err, rpc.ErrAway)
		if !again || !natsconn.Pause(pauses, delivery.Jitter(pause)) {
			return answer, err
		}
	}
}

// askOnce asks a bridge, and the log when no bridge listens.
func (s *Service) askOnce(ask rpc.Ask, timeout time.Duration) (rpc.Answer, error) {
	ctx, cancel := context.WithTimeout(s.subs.Base, timeout)
	defer cancel()
	answer, err := ask.Do(ctx, s.nc)
	if errors.Is(err, rpc.ErrNobody) && s.hasEnded(ctx, ask) {
		err = refusal.ErrNoSession
	}
	return answer, err
}

// hasEnded asks the log whether a call's session has ended.
func (s *Service) hasEnded(ctx context.Context, ask rpc.Ask) bool {
	if ask.Action == rpc.Open || ask.Action == rpc.Request {
		return false
	}
	rec, err := s.sessions.Get(ctx, ask.Session)
	return errors.Is(err, session.ErrNotFound) || err == nil && rec.State != session.Open
}

// beginAsk begins the span of a question to a bridge, which continues it. When the span is not
// sampled, the bridge receives the client's own trace context.
func (s *Service) beginAsk(by context.Context, ask *rpc.Ask) trace.Span {
	_, span := s.traces.Start(by, tracing.Ask.Name, trace.SpanKindClient)
	if span.IsRecording() {
		span.SetAttributes(tracing.Ask.On(rpc.Subject(ask.Session), ask.Session, ask.Stream)...)
		ask.Trace = tracing.Of(span.SpanContext())
	} else {
		ask.Trace = tracing.Read(ask.Header.Values)
	}
	return span
}

// withheld are the headers that belong to the connection, to the transport, or to Rejoin: a
// bridge does not receive them, above all not the client's token, which is for the edge.
var withheld = []string{
	"Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Cookie", "Expect", "Host", "Keep-Alive",
	headerLastID, headerSession, "Origin", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// forwarded returns the client's headers for the bridge.
func forwarded(c *fiber.Ctx) http.Header {
	h := http.Header{}
	c.Request().Header.VisitAll(func(name, value []byte) { h.Add(string(name), string(value)) })
	for _, name := range withheld {
		delete(h, http.CanonicalHeaderKey(name))
	}
	return h
}

// cancel tells the bridge, without waiting for it, that a client no longer waits for a call's response on its
// connection; resumable says that a client may still resume.
func (s *Service) cancel(ask rpc.Ask, resumable bool) {
	s.attached.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.subs.Base, takenTimeout)
		defer cancel()
		ask := rpc.Ask{Action: rpc.Cancel, Session: ask.Session, Stream: ask.Stream, Since: ask.Since, Resumable: resumable}
		_, err := ask.Do(ctx, s.nc)
		s.logger.Debug("a client's disconnect was reported to its bridge", "session", ask.Session, "stream", ask.Stream, "error", err)
	})
}
