package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// TokenFunc returns the token for the next request; empty to send no token.
// It is called before every request, possibly by several goroutines at a time, so
// that a token that expires can be renewed, and again when a token is refused with
// 401: a different one is sent at once, one time. An error counts as temporary: it is
// logged, and the call is repeated later.
type TokenFunc func(ctx context.Context) (string, error)

// endpoint is a server's URL with the token function and the HTTP client for it.
type endpoint struct {
	base  string
	token TokenFunc
	http  *http.Client
	own   *http.Transport // of http, when it is not shared
}

// newEndpoint returns the endpoint at a URL. Without a client it gets a transport
// of its own, which keeps up to idle connections.
func newEndpoint(base string, token TokenFunc, client *http.Client, idle int) endpoint {
	e := endpoint{base: strings.TrimRight(base, "/"), token: token, http: client}
	if client == nil {
		e.own = ownTransport(idle)
		e.http = &http.Client{Transport: e.own, CheckRedirect: FollowRedirect}
	}
	return e
}

// FollowRedirect follows up to ten redirects, as net/http does, and keeps the token from other origins, as
// fetch does: net/http takes it along to other ports, to subdomains, and between http and https. It is for
// the CheckRedirect of an HTTPClient.
func FollowRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("more than ten redirects")
	}
	if from, to := via[0].URL, req.URL; from.Scheme != to.Scheme || !strings.EqualFold(from.Hostname(), to.Hostname()) || port(from) != port(to) {
		req.Header.Del("Authorization")
	}
	return nil
}

// port returns the port of an http or https URL.
func port(u *url.URL) string {
	if given := u.Port(); given != "" {
		return given
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// pingAfter is how long a connection of HTTP/2 may be silent before it is asked whether it is alive; without an
// answer within 15 s it is closed. A request that is given up closes none, so the next one would take a dead one.
const pingAfter = 15 * time.Second

// ownTransport returns a transport with the settings of [http.DefaultTransport],
// which a program may have replaced by another http.RoundTripper.
func ownTransport(idle int) *http.Transport {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConnsPerHost = idle
	if transport.HTTP2 == nil {
		transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter}
	}
	return transport
}

// checkURL returns an error when a base URL cannot be one.
func checkURL(base string) error {
	u, err := url.Parse(base)
	switch {
	case err != nil && !strings.Contains(base, "://"):
		return fmt.Errorf("%w: the URL %q does not begin with http:// or https://", ErrInvalidConfig, base)
	case err != nil:
		return fmt.Errorf("%w: URL: %w", ErrInvalidConfig, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("%w: the URL is not http:// or https:// with a host", ErrInvalidConfig)
	case strings.ContainsAny(base, "?#"):
		return fmt.Errorf("%w: the URL has a query or a fragment", ErrInvalidConfig)
	}
	return nil
}

// request makes a request with the current token.
func (e *endpoint) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+path, body)
	if err != nil {
		return nil, err
	}
	return req, e.authorize(req)
}

// errNoToken is wrapped when a request has no token, and was therefore not sent, or was refused.
var errNoToken = errors.New("token")

// authorize gives a request the current token.
func (e *endpoint) authorize(req *http.Request) error {
	if e.token == nil {
		return nil
	}
	token, err := e.token(req.Context())
	if err != nil {
		return fmt.Errorf("%w: %w", errNoToken, err)
	}
	req.Header.Del("Authorization")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// do sends a request, and once more if its token is refused and the token function returns a different one.
func (e *endpoint) do(req *http.Request) (*http.Response, error) {
	resp, err := e.http.Do(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || answersAnother(resp, req.Method) {
		return resp, err
	}
	again := req.Clone(req.Context())
	err = e.authorize(again)
	if err == nil && again.Header.Get("Authorization") == req.Header.Get("Authorization") {
		return resp, nil
	}
	_ = resp.Body.Close() // it is another answer that counts
	if err == nil && req.GetBody != nil {
		again.Body, err = req.GetBody()
	}
	if err != nil {
		return nil, err
	}
	return e.http.Do(again)
}

// answersAnother reports whether a redirect (301, 302 or 303) has made a GET of a request of the method.
func answersAnother(resp *http.Response, method string) bool {
	return resp.Request != nil && resp.Request.Method != method
}

// rest closes idle connections.
func (e *endpoint) rest() {
	if e.own != nil {
		e.own.CloseIdleConnections()
	}
}

// eventsPath is the path of a stream's events, or of a session's when stream is
// empty. Names may hold slashes and question marks.
func eventsPath(session, stream string) string {
	path := "/v1/sessions/" + url.PathEscape(session)
	if stream != "" {
		path += "/streams/" + url.PathEscape(stream)
	}
	return path + "/events"
}
