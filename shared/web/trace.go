package web

import (
	"net/http"

	"github.com/gofiber/fiber/v2"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/tracing"
)

// trace begins the span of a request, and returns the function that ends it. A stream that
// outlives its request is not part of it.
func (cfg Config) trace(c *fiber.Ctx, method string) (end func()) {
	if !cfg.Traces.On() {
		return func() {}
	}
	fields := func(name string) (all []string) {
		for _, value := range c.Request().Header.PeekAll(name) {
			all = append(all, string(value))
		}
		return all
	}
	ctx, span := cfg.Traces.Continue(c.UserContext(), tracing.Read(fields), method, trace.SpanKindServer)
	c.SetUserContext(ctx)
	return func() {
		if span.IsRecording() {
			describe(span, c, method)
		}
		span.End()
	}
}

// describe names a span after its route, as OpenTelemetry's semantic conventions for HTTP
// have it.
func describe(span trace.Span, c *fiber.Ctx, method string) {
	status := c.Response().StatusCode()
	span.SetAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError {
		tracing.Fail(span)
	}
	if route := c.Route().Path; route != "/" {
		span.SetName(method + " " + route)
		span.SetAttributes(semconv.HTTPRoute(route))
	}
	session, stream := Place(c)
	if session != "" {
		span.SetAttributes(tracing.KeySession.String(session))
	}
	if stream != "" {
		span.SetAttributes(tracing.KeyStream.String(stream))
	}
}
