package mcpedge

import (
	"net/http"
	"strings"
	"testing"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
)

// The page of an origin that differs in its scheme is another page, and one that loads GET /sse
// or GET /mcp without CORS, as an image does, names no origin at all.
func TestAttackMCPFromOtherOrigins(t *testing.T) {
	f, b := bridged(t)
	for mode, tt := range map[string]struct {
		change  func(*config)
		headers []string
	}{
		"without access control": {nil, nil},
		"with a token":           {guarded(t), edgetest.Bearer(authtest.Of(t, "alice", "*"))},
	} {
		t.Run(mode, func(t *testing.T) {
			url := f.mcpEdge(tt.change)
			u := join(t, url, "2025-11-25", tt.headers...)
			calls := len(b.sent(rpc.Post))
			host := strings.TrimPrefix(url, "http://")
			for name, page := range map[string][]string{
				"another scheme":              {"Origin", "https://" + host},
				"an unknown scheme":           {"Origin", "foo://" + host},
				"no scheme":                   {"Origin", host},
				"another site":                {"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"},
				"another site, no origin":     {"Sec-Fetch-Site", "cross-site"},
				"another origin of this site": {"Sec-Fetch-Site", "same-site"},
			} {
				for method, body := range map[string]string{http.MethodPost: toolCall, http.MethodGet: "", http.MethodDelete: ""} {
					if a := u.do(method, body, page...); a.StatusCode != http.StatusForbidden {
						t.Errorf("%s: %s: %d", name, method, a.StatusCode)
					}
				}
				headers := append([]string{"Accept", "text/event-stream"}, append(page, tt.headers...)...)
				resp, err := edgetest.Send(t, http.MethodGet, url+"/sse", headers...)
				must.NoError(t, err)
				_ = resp.Body.Close() // an event stream would not end
				if resp.StatusCode != http.StatusForbidden {
					t.Errorf("%s: GET /sse: %d", name, resp.StatusCode)
				}
			}
			if n := len(b.sent(rpc.Post)); n != calls {
				t.Errorf("%d calls reached the MCP server", n-calls)
			}
			for name, page := range map[string][]string{
				"no page":         nil,
				"the edge's own":  {"Origin", url},
				"its own, by TLS": {"Origin", "https://" + host, "X-Forwarded-Proto", "https"},
				"its own, said":   {"Sec-Fetch-Site", "same-origin"},
			} {
				if a := u.read(u.do(http.MethodPost, "{", page...)); a.StatusCode != http.StatusBadRequest {
					t.Errorf("%s: %d %s", name, a.StatusCode, a.Text)
				}
			}
		})
	}
}
