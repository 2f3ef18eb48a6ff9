package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/must"
)

// A token is for the origin of the URL: scheme, host and port.
func TestEndpoint_TokenStaysAtItsOrigin(t *testing.T) {
	for _, tt := range []struct{ from, to, want string }{
		{"https://a.test", "https://a.test/moved", "Bearer secret"},
		{"http://a.test", "https://a.test/", ""},
		{"https://a.test:443", "https://a.test/moved", "Bearer secret"},
		{"https://a.test", "http://a.test/", ""},
		{"https://a.test", "https://a.test:8443/", ""},
		{"https://a.test", "https://other.a.test/", ""},
		{"https://a.test", "https://b.test/", ""},
	} {
		var sent []string
		e := newEndpoint(tt.from, nil, nil, 1)
		e.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r.Header.Get("Authorization"))
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
			if len(sent) == 1 {
				resp.StatusCode = http.StatusTemporaryRedirect
				resp.Header.Set("Location", tt.to)
			}
			return resp, nil
		})
		e.token = func(context.Context) (string, error) { return "secret", nil }
		req := must.Value(e.request(t.Context(), http.MethodGet, "/", nil))(t)
		resp, err := e.http.Do(req)
		must.NoError(t, err)
		_ = resp.Body.Close()
		if len(sent) != 2 || sent[1] != tt.want {
			t.Errorf("redirected from %s to %s, it sends %q", tt.from, tt.to, sent)
		}
	}
}

// After a refused token the function is called again, once, and another token is sent with the same body.
func TestEndpoint_TokenIsRefused(t *testing.T) {
	for tokens, want := range map[string]string{ // of the function, and of the requests; - is no token, and b is accepted
		"ab": "ab", "aa": "a", "acb": "ac", "a-": "a-", "--": "-", "a": "a",
	} {
		left, sent := tokens, ""
		e := newEndpoint("http://a.test", func(context.Context) (string, error) {
			if left == "" {
				return "", errSilent
			}
			token := strings.Trim(left[:1], "-")
			left = left[1:]
			return token, nil
		}, &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			sent += strings.TrimPrefix(cmp.Or(r.Header.Get("Authorization"), "-"), "Bearer ")
			if body, err := io.ReadAll(r.Body); string(body) != "body" || err != nil {
				t.Errorf("of %s: sent %q, %v", tokens, body, err)
			}
			status := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[strings.HasSuffix(sent, "b")]
			return &http.Response{StatusCode: status, Body: http.NoBody, Request: r}, nil
		})}, 1)
		req := must.Value(e.request(t.Context(), http.MethodPost, "/", strings.NewReader("body")))(t)
		resp, err := e.do(req)
		if sent != want || errors.Is(err, errSilent) != (tokens == "a") || err == nil && (resp.StatusCode == http.StatusOK) != (tokens == "ab") {
			t.Errorf("of %s: sent %s, %v", tokens, sent, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
	}
}
