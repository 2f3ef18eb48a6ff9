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
	// bridgeWait is how long a request waits for a bridge to be there (docs/adr/0048).
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

// askUntilTaken asks a bridge. If nothing was done it asks again, for as long as a bridge takes to be replaced or to
// connect again. The time-out begins with each question.
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

// askOnce asks a bridge, and the log where none is there.
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

// beginAsk begins the span of what a bridge is asked, which continues it. When it is not
// sampled, the bridge gets the client's own trace context.
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
// bridge does not get them. Above all not the client's token, which is for the edge.
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
// connection; resumable says that somebody may come back.
func (s *Service) cancel(ask rpc.Ask, resumable bool) {
	s.attached.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.subs.Base, takenTimeout)
		defer cancel()
		ask := rpc.Ask{Action: rpc.Cancel, Session: ask.Session, Stream: ask.Stream, Since: ask.Since, Resumable: resumable}
		_, err := ask.Do(ctx, s.nc)
		s.logger.Debug("a bridge was told that a client has gone", "session", ask.Session, "stream", ask.Stream, "error", err)
	})
}
