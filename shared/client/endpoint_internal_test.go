package client

import (
	"context"
	"net/http"
	"testing"
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
		req, err := e.request(t.Context(), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := e.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if len(sent) != 2 || sent[1] != tt.want {
			t.Errorf("redirected from %s to %s, it sends %q", tt.from, tt.to, sent)
		}
	}
}
