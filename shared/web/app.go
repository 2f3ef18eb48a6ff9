// Package web is the HTTP that Rejoin's services share: one Fiber application
// with routes from several services, problem documents for every error, path
// parameters that survive encoding, and an orderly stop. Access control, checks
// of hosts, origins and request heads, and rates come before the routes; bodies
// are read within a budget of memory.
package web

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"rejoin/shared/quota"
	"rejoin/shared/tracing"
)

// IdleTimeout bounds the time between two requests on a connection.
const IdleTimeout = time.Minute

// MaxHeaderBytes bounds the request line and headers; larger ones are answered 431. Each
// connection that is being served holds a buffer of this size.
const MaxHeaderBytes = 8 << 10

// Config configures an application. Zero values mean the defaults.
type Config struct {
	// Service is the middle of the metrics' names,
	// rejoin_<service>_http_requests_total: lower-case letters, digits and
	// underscores. Required.
	Service string

	// Log gets refused requests at level debug, failed ones at warn and
	// error: the first of a kind, and how many of it follow within 10 s, with
	// their clients. Default: nothing is logged.
	Log *slog.Logger

	// Refusals writes these lines; the application closes it when it stops. Default: one of its own.
	Refusals *Refusals

	// Metrics takes the request metrics. Default: none are kept.
	Metrics prometheus.Registerer

	// Traces takes a span of each request, a child of the one that its header names.
	// Handlers find it in the request's UserContext. Default: no spans are made.
	Traces *tracing.Traces

	// Memory is how many bytes clients may make the application hold: bodies, and the memory
	// that handlers count. Default: any number.
	Memory *quota.Pool

	// MaxBodyBytes bounds a request's announced body, except lines of JSON; a larger
	// one is answered 413. Default: 4 MiB.
	MaxBodyBytes func() int

	// Clients has the time-outs of headers and bodies. Default: those of
	// [ClientsConfig].
	Clients *Clients

	// WriteTimeout bounds the writing of a response, not the time until it
	// begins. It ends where a connection is hijacked. Default: 30 s.
	WriteTimeout time.Duration
}

func (cfg Config) withDefaults() Config {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or[prometheus.Registerer](cfg.Metrics, prometheus.NewRegistry())
	if cfg.MaxBodyBytes == nil {
		cfg.MaxBodyBytes = func() int { return 4 << 20 }
	}
	cfg.Clients = cmp.Or(cfg.Clients, &Clients{alike: true})
	cfg.Refusals = cmp.Or(cfg.Refusals, NewRefusals(cfg.Log, cfg.Clients))
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 30*time.Second)
	return cfg
}

// NewApp returns an application without routes. Add the checks
// before them with [Access.Protect], then routes with [Mount], then call [Serve].
//
// Every error that a handler or middleware returns, a panic included,
// becomes a problem document; see [AsProblem]. An unknown path is 404
// not_found, a wrong method 405 method_not_allowed with Allow, OPTIONS on a
// known path 204 with Allow.
//
// It panics when its metrics are registered already: a program has one
// application for each Service.
func NewApp(cfg Config) *fiber.App {
	cfg = cfg.withDefaults()
	m := newMetrics(cfg.Service, cfg.Metrics)
	app := fiber.New(fiber.Config{
		AppName:                      "Rejoin",
		CaseSensitive:                true,
		UnescapePath:                 false, // see Param
		DisableStartupMessage:        true,
		DisablePreParseMultipartForm: true,
		BodyLimit:                    cfg.MaxBodyBytes(),
		StreamRequestBody:            true, // see Body
		ReadBufferSize:               MaxHeaderBytes,
		ReadTimeout:                  cfg.Clients.HeaderTimeout(),
		WriteTimeout:                 cfg.WriteTimeout,
		IdleTimeout:                  IdleTimeout,
		// It gets only requests that fail before they are routed: frame
		// below handles the errors of all others.
		ErrorHandler: func(c *fiber.Ctx, err error) error {
			defer m.count(methodOther, c.Response())
			isolate(c)
			// fasthttp quotes the head, with the token in it.
			if text, _, quotes := strings.Cut(err.Error(), `"`); quotes {
				err = fiber.NewError(fiber.StatusBadRequest, text)
			}
			return answer(c, cfg, err)
		},
	})
	server := app.Server()
	server.HeaderReceived = func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		refuseLength(h, cfg.MaxBodyBytes())
		deferClose(h)
		return fasthttp.RequestConfig{ReadTimeout: cfg.Clients.bodyTimeout()}
	}
	// Fiber answers a method that it does not know with 400 in plain text,
	// before any of our handlers runs (docs/upstream/0025). As TRACE, which no route
	// has, it gets the 404 or 405 of any other wrong method.
	routed := server.Handler
	server.Handler = func(c *fasthttp.RequestCtx) {
		if !slices.Contains(fiber.DefaultMethods, string(c.Method())) {
			c.Request.Header.SetMethod(fiber.MethodTrace)
		}
		routed(c)
	}
	app.Hooks().OnShutdown(func() error {
		cfg.Refusals.close()
		return nil
	})
	app.Use(frame(m, cfg), checkHead, checkTarget)
	return app
}

// frame is around everything else: it measures, recovers from panics, answers errors,
// so that the measured status is the one sent, and keeps the rest of a body from being
// read as the next request.
func frame(m *metrics, cfg Config) fiber.Handler {
	return func(c *fiber.Ctx) error {
		start := time.Now()
		method := methodLabel(c.Method())
		cfg.Clients.watch(c, cfg.Log)
		isolate(c)
		body := newBody(c, cfg)
		c.Locals(bodyKey{}, body)
		defer cfg.trace(c, method)()
		err := guarded(c)
		if err == nil {
			err = holdAnswer(c)
		}
		if err != nil {
			if err := answer(c, cfg, err); err != nil {
				return err
			}
		}
		body.finish()
		m.count(method, c.Response())
		m.duration.WithLabelValues(method).Observe(time.Since(start).Seconds())
		return nil
	}
}

// isolate sets the headers that keep an answer from pages of other origins that load it as a
// script, an image or a style sheet: a browser then guesses no media type (nosniff) and does not
// even pass it to such a page's process (Cross-Origin-Resource-Policy, Fetch standard, section
// 3.7). Neither concerns requests with CORS, which EventSource and fetch make.
func isolate(c *fiber.Ctx) {
	c.Set(fiber.HeaderXContentTypeOptions, "nosniff")
	c.Set(fiber.HeaderCrossOriginResourcePolicy, "same-origin")
}

// panicError is the panic of a handler.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func guarded(c *fiber.Ctx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return c.Next()
}

// checkHead refuses requests that fasthttp and the proxies in front may read differently
// (docs/upstream/0021), and closes the connection after them, since the next bytes may not be a
// request:
//
//   - those of which they may see different ends, so that one hides in another's body (RFC 9112,
//     section 11.2): with more than one Content-Length or Transfer-Encoding, with both, with a
//     coding besides chunked, or with any in HTTP/1.0, which has no codings (section 6.1);
//   - those with more than one Host, of which each may take another, or of HTTP/1.1 without a Host
//     (section 3.2);
//   - those with a CR that ends no line, which some take for the end of one (section 2.2).
func checkHead(c *fiber.Ctx) error {
	if err := headProblem(&c.Request().Header); err != nil {
		StreamedBody(c).close() // a client may be sending the body: a reset would hide the answer
		return err
	}
	return c.Next()
}

func headProblem(h *fasthttp.RequestHeader) error {
	framed, hosts, plain := 0, 0, true
	for line := range bytes.Lines(h.RawHeaders()) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte(fiber.HeaderHost)):
			hosts++
		case bytes.EqualFold(name, []byte(fiber.HeaderContentLength)):
			framed++
		case bytes.EqualFold(name, []byte(fiber.HeaderTransferEncoding)):
			framed++
			plain = h.IsHTTP11() && bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
		}
	}
	if framed > 1 || !plain || hosts > 1 || hosts == 0 && h.IsHTTP11() || bareCR(h.RequestURI()) || bareCR(h.RawHeaders()) {
		return New(CodeInvalidRequest, "")
	}
	return nil
}

// bareCR reports whether text has a CR without an LF after it.
func bareCR(text []byte) bool {
	return bytes.Count(text, []byte("\r")) != bytes.Count(text, []byte("\r\n"))
}

// checkTarget refuses request targets of which fasthttp and the proxies in
// front may see different paths or hosts: in "//host/path?://" fasthttp
// finds a host (docs/upstream/0021). The remaining targets begin with one slash, or are absolute
// URIs, which RFC 9112, section 3.2.2 wants served.
func checkTarget(c *fiber.Ctx) error {
	target := c.OriginalURL()
	if (strings.HasPrefix(target, "/") && !strings.HasPrefix(target, "//")) ||
		strings.HasPrefix(target, "http://") || strings.HasPrefix(target, "https://") {
		return c.Next()
	}
	return New(CodeNotFound, "")
}
