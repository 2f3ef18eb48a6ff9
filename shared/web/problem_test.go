package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// expectProblem checks that r is a complete problem document of the code.
func expectProblem(t *testing.T, r response, code Code) Problem {
	t.Helper()
	var p Problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v in %d %q, want %s", err, r.status, r.body, code)
	}
	kind := Codes[code]
	if p.Code != code || r.status != kind.Status || p.Status != kind.Status || p.Title != kind.Title || p.Type != "urn:rejoin:problem:"+string(code) {
		t.Errorf("got %d %s, want %s %+v", r.status, r.body, code, kind)
	}
	if got := r.header.Get("Content-Type"); got != MIMEProblem {
		t.Errorf("Content-Type is %q", got)
	}
	if got := r.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control is %q", got)
	}
	want := ""
	if kind.RetryAfter > 0 {
		want = strconv.Itoa(int(kind.RetryAfter.Seconds()))
	}
	if got := r.header.Get("Retry-After"); got != want {
		t.Errorf("Retry-After is %q, want %q", got, want)
	}
	if r.header.Get("Server") != "" {
		t.Error("there is a Server header")
	}
	return p
}

func TestProblem_Codes(t *testing.T) {
	t.Parallel()
	app := NewApp(Config{Service: "test"})
	Mount(app, Route{Method: "GET", Path: "/:code", Handler: func(c *fiber.Ctx) error {
		code, err := Param(c, "code")
		if err != nil {
			return err
		}
		return fmt.Errorf("wrapped: %w", Wrap(errors.New("secret"), Code(code), "told"))
	}})
	addr := serve(t, app)
	for code, kind := range Codes {
		t.Run(string(code), func(t *testing.T) {
			if kind.Status < 400 || http.StatusText(kind.Status) == "" || !strings.HasSuffix(kind.Title, ".") || kind.RetryAfter%time.Second != 0 {
				t.Errorf("a strange kind: %+v", kind)
			}
			r := do(t, addr, "GET", "/"+string(code), "")
			if p := expectProblem(t, r, code); p.Detail != "told" {
				t.Errorf("detail is %q", p.Detail)
			}
			if strings.Contains(r.body, "secret") {
				t.Errorf("the cause got out: %s", r.body)
			}
		})
	}
}

func TestProblem_CauseIsLogged(t *testing.T) {
	cause := errors.New("nats: no responders")
	p := Wrap(cause, CodeUnavailable, "The log cannot be reached.")
	if !errors.Is(p, cause) {
		t.Error("the cause is lost")
	}
	if got, want := p.Error(), "unavailable: The log cannot be reached: nats: no responders"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Wrap(cause, CodeInvalidJSON, cause.Error()).Error(), "invalid_json: nats: no responders"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestProblem_FiberErrors(t *testing.T) {
	for status, want := range map[int]Code{
		400: CodeInvalidRequest,
		404: CodeNotFound,
		405: CodeMethodNotAllowed,
		406: CodeNotAcceptable,
		408: CodeRequestTimeout,
		413: CodeBodyTooLarge,
		415: CodeUnsupportedMediaType,
		422: CodeInvalidRequest,
		431: CodeHeadersTooLarge,
		500: CodeInternal,
		501: CodeInternal,
		502: CodeInvalidRequest,
		503: CodeUnavailable,
	} {
		p := AsProblem(fmt.Errorf("wrapped: %w", fiber.NewError(status, "secret")))
		if p.Code != want || strings.Contains(p.Detail, "secret") {
			t.Errorf("%d becomes %+v, want %s", status, p, want)
		}
	}
}

func TestProblem_InternalErrors(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	app := NewApp(Config{Service: "test", Log: slog.New(slog.NewJSONHandler(&logged, nil))})
	Mount(app,
		Route{Method: "GET", Path: "/error", Handler: func(*fiber.Ctx) error { return errors.New("secret cause") }},
		Route{Method: "GET", Path: "/panic", Handler: func(*fiber.Ctx) error { panic("secret cause") }},
	)
	addr, stop := start(t, app, waittest.Timeout)
	for _, path := range []string{"/error", "/panic"} {
		r := do(t, addr, "GET", path, "Connection: close\r\n")
		if p := expectProblem(t, r, CodeInternal); p.Detail != "" || strings.Contains(r.body, "secret") {
			t.Errorf("%s tells %s", path, r.body)
		}
	}
	must.NoError(t, stop()) // the log is complete
	lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"error":"secret cause"`) ||
		!strings.Contains(lines[1], `"error":"panic: secret cause"`) || !strings.Contains(lines[1], "problem_test.go") {
		t.Errorf("logged %s", logged.String())
	}
}
