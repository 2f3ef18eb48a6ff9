package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/shared/auth"
	"rejoin/shared/daemon"
	"rejoin/shared/flagtype"
	"rejoin/shared/metric"
)

// AccessConfig configures access control and CORS. Its fields are flags of the programs that serve HTTP.
type AccessConfig struct {
	auth.Config

	// CORSOrigins are the origins of the pages in browsers that may read answers and make
	// changes, with a cookie too: scheme, host, and the port if it is not the scheme's
	// own. A service's own pages need no entry, except to make changes with a cookie.
	// Default: none.
	CORSOrigins []string `name:"cors-origins" help:"Origins of web pages that may read responses and make changes, such as https://app.example." placeholder:"ORIGIN"`
}

// Validate returns an error with advice about the first flag that makes no
// sense.
func (cfg AccessConfig) Validate() error {
	for _, origin := range cfg.CORSOrigins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || origin != u.Scheme+"://"+u.Host || strings.ContainsAny(u.Host, "*@") {
			return fmt.Errorf("--cors-origins takes origins such as https://app.example, without a path or *, and not %q", origin)
		}
		if origin != strings.ToLower(origin) {
			return fmt.Errorf("--cors-origins takes origins in lower case, as browsers send them, and not %q", origin)
		}
	}
	return cfg.Config.Validate()
}

// Access is the access control of a program's services. A nil Access is one without
// access control and without origins. It is safe for concurrent use.
type Access struct {
	cfg      AccessConfig
	verifier *auth.Verifier // nil: no access control
	origins  map[string]bool
	refused  *prometheus.CounterVec
}

// The reasons for refusals that are not about the token itself, as the metric's label.
const (
	refusedURL    = "url"
	refusedHeader = "header"
	refusedOrigin = "origin"
	refusedScope  = "scope"
)

// NewAccess makes the access control that cfg describes, and reads its key. It registers
// the metric rejoin_auth_refused_total; so a program has one Access for all its services.
// Errors are one sentence for the user.
func NewAccess(cfg AccessConfig, env daemon.Env) (*Access, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Access{cfg: cfg, origins: make(map[string]bool, len(cfg.CORSOrigins))}
	for _, origin := range cfg.CORSOrigins {
		a.origins[origin] = true
	}
	if cfg.On() {
		var err error
		if a.verifier, err = auth.NewVerifier(cfg.Config, env.Log); err != nil {
			return nil, err
		}
	}
	a.refused = metric.CounterOf(env.Metrics, "rejoin_auth_refused_total",
		"Requests that access control refused, by reason: the token, its place (url, header), the page's origin (origin), or a request that the token does not allow (scope).",
		"reason", append(auth.Reasons(), refusedURL, refusedHeader, refusedOrigin, refusedScope)...)
	return a, nil
}

// Check returns the error of [NewAccess]. It leaves out files that can be read only once.
func (cfg AccessConfig) Check() error {
	if !flagtype.ReadTwice(cfg.SecretFile) || !flagtype.ReadTwice(cfg.KeyFile) {
		return cfg.Validate()
	}
	_, err := NewAccess(cfg, daemon.NewEnv(nil))
	return err
}

// On reports whether there is access control.
func (a *Access) On() bool { return a != nil && a.verifier != nil }

// CheckListen returns an error if addr, host:port, must not be listened on without
// access control; see [auth.Config.CheckListen].
func (a *Access) CheckListen(addr, flag string) error {
	if a == nil {
		return auth.Config{}.CheckListen(addr, flag)
	}
	return a.cfg.CheckListen(addr, flag)
}

// grantsKey is the key under which Authenticate keeps the grants of a request.
type grantsKey struct{}

// everybody has the grants of all requests without access control.
var everybody = auth.Everything()

// Guard returns a handler that calls h for requests with a valid token, whose grants [Access.Grants]
// then returns. Others are answered with the error of [Access.Authenticate]. Without access control it
// returns h.
//
// Each route carries its own guard, so a route that is mounted on another service's address
// is guarded there too; the handler of a route whose guard was forgotten has no grants.
func (a *Access) Guard(h fiber.Handler) fiber.Handler {
	if !a.On() {
		return h
	}
	return func(c *fiber.Ctx) error {
		if _, err := a.Authenticate(c); err != nil {
			return err
		}
		return h(c)
	}
}

// GuardFor is [Access.Guard] for requests that allows accepts; others are answered with
// [Access.Insufficient].
func (a *Access) GuardFor(allows func(*fiber.Ctx, auth.Grants) bool, h fiber.Handler) fiber.Handler {
	if !a.On() {
		return h
	}
	return a.Guard(func(c *fiber.Ctx) error {
		if !allows(c, a.Grants(c)) {
			return a.Insufficient(c)
		}
		return h(c)
	})
}

// Grants returns the grants of the request's token: all without access control,
// none before [Access.Authenticate].
func (a *Access) Grants(c *fiber.Ctx) auth.Grants {
	if !a.On() {
		return everybody
	}
	grants, _ := c.Locals(grantsKey{}).(auth.Grants)
	return grants
}

// tokenParameters are the names under which clients put a token into a URL.
var tokenParameters = []string{"access_token", "token"}

// verifyTimeout bounds the wait for a key set.
const verifyTimeout = 10 * time.Second

// Authenticate returns the grants of the request's token: that of the Authorization header
// (RFC 6750, section 2.1), or else of the cookie that [Access.SetCookie] sets. Without
// access control these are all grants. From then on the request counts as the token's subject
// in shares; see [Clients.Client].
//
// Errors are a [*Problem]: 401 unauthorized with WWW-Authenticate, by which a client learns
// whether it had a token and nothing else (the reason is in the log, and in
// rejoin_auth_refused_total); 400 token_in_url for a token in the query, which
// would appear in logs and in the histories of browsers; 400 invalid_header; 403
// origin_not_allowed for a request that would make a change with a cookie, and that no
// page of a listed origin sent; 503 unavailable while the keys cannot be fetched.
func (a *Access) Authenticate(c *fiber.Ctx) (auth.Grants, error) {
	if !a.On() {
		return everybody, nil
	}
	for _, name := range tokenParameters {
		if c.Context().QueryArgs().Has(name) {
			return auth.Grants{}, a.refuse(refusedURL, New(CodeTokenInURL,
				"Send the token in the header Authorization: Bearer, or, where a page cannot set one, exchange it for a cookie at POST /v1/cookie. Take the one that was in the URL for known to others."))
		}
	}
	token, ofCookie, err := credentials(c)
	if err != nil {
		return auth.Grants{}, a.refuse(refusedHeader, err)
	}
	if ofCookie && writes(c) && !a.listed(c) {
		return auth.Grants{}, a.refuse(refusedOrigin, notListed())
	}
	grants, err := a.verify(c, token)
	if err == nil {
		c.Locals(grantsKey{}, grants)
	}
	return grants, err
}

func (a *Access) verify(c *fiber.Ctx, token string) (auth.Grants, error) {
	ctx, cancel := context.WithTimeout(context.Background(), verifyTimeout)
	defer cancel()
	grants, err := a.verifier.Verify(ctx, token)
	if err == nil {
		return grants, nil
	}
	problem := Wrap(err, CodeUnauthorized, "")
	switch {
	case errors.Is(err, auth.ErrUnavailable):
		problem = Wrap(err, CodeUnavailable, "Tokens cannot be checked at the moment.")
	case errors.Is(err, auth.ErrMissing):
		challenge(c.Response(), "") // RFC 6750, section 3.1: no error code without a token
	default:
		challenge(c.Response(), "invalid_token")
	}
	return auth.Grants{}, a.refuse(auth.Reason(err), problem)
}

// Insufficient returns the problem that answers a request that its token does not
// allow: 403 insufficient_scope. It must depend only on the token, not on existing sessions.
func (a *Access) Insufficient(c *fiber.Ctx) error {
	challenge(c.Response(), "insufficient_scope")
	return a.refuse(refusedScope, New(CodeInsufficientScope, ""))
}

// challenge sets WWW-Authenticate (RFC 6750, section 3).
func challenge(r *fiber.Response, code string) {
	value := `Bearer realm="rejoin"`
	if code != "" {
		value += `, error="` + code + `"`
	}
	r.Header.Set(fiber.HeaderWWWAuthenticate, value)
}

func (a *Access) refuse(reason string, err error) error {
	a.refused.WithLabelValues(reason).Inc()
	return err
}

// credentials returns the request's token, empty without one, and whether a cookie held it. Beside an
// Authorization header the cookie does not count, even when the header holds no token.
func credentials(c *fiber.Ctx) (token string, ofCookie bool, err error) {
	switch headers := c.Request().Header.PeekAll(fiber.HeaderAuthorization); len(headers) {
	case 0:
		token = strings.Clone(c.Cookies(cookieName(c)))
		return token, token != "", nil
	case 1:
		return bearer(string(headers[0])), false, nil
	default:
		return "", false, New(CodeInvalidHeader, "Authorization is given more than once.")
	}
}

// bearer returns the token of an Authorization header; empty if it has another scheme.
func bearer(value string) string {
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.Trim(token, " ")
}

func notListed() *Problem {
	return New(CodeOriginNotAllowed, "A request that changes something with a cookie must come from a page of an origin that is on the list of --cors-origins.")
}

// writes reports whether a request may make a change (RFC 9110, section 9.2.1).
func writes(c *fiber.Ctx) bool {
	switch c.Method() {
	case fiber.MethodGet, fiber.MethodHead, fiber.MethodOptions:
		return false
	default:
		return true
	}
}

// listed reports whether a request comes from a page of one of the origins.
func (a *Access) listed(c *fiber.Ctx) bool {
	headers := c.Request().Header.PeekAll(fiber.HeaderOrigin)
	return len(headers) == 1 && a.origins[string(bytes.TrimSpace(headers[0]))]
}
