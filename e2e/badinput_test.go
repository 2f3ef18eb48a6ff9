package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"rejoin/shared/must"
)

const jsonType = "application/json"

// Every refusal is a problem document with a stable code, stores nothing, and
// leaves the service as it was.
func TestBadInput_StoresNothing(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--max-message-bytes=4096")
	events := streamPath("bad", "s")
	good := numbered(1)
	cases := []struct {
		name, method, path, body string
		status                   int
		code                     string
		headers                  []string
	}{
		{"unknown route", "GET", "/v2/sessions", "", 404, "not_found", nil},
		{"unknown resource", "POST", "/v1/sessions/bad/streams/s", good, 405, "method_not_allowed", nil},
		{"unknown path below a stream", "GET", "/v1/sessions/bad/streams/s/other", "", 404, "not_found", nil},
		{"wrong method on events", "PUT", events, good, 405, "method_not_allowed", nil},
		{"unknown method", "BREW", events, "", 405, "method_not_allowed", nil},
		{"wrong method on sessions", "DELETE", "/v1/sessions", "", 405, "method_not_allowed", nil},
		{"wrong method on a session", "POST", "/v1/sessions/bad", "{}", 405, "method_not_allowed", nil},
		{"HEAD on an event stream", "HEAD", events, "", 405, "", nil},

		{"multipart", "POST", events, "--x--", 415, "unsupported_media_type", []string{"Content-Type", "multipart/form-data; boundary=x"}},
		{"compressed", "POST", events, good, 415, "unsupported_media_type", []string{"Content-Type", jsonType, "Content-Encoding", "gzip"}},
		{"body too large", "POST", events, `{"jsonrpc":"2.0","method":"` + strings.Repeat("m", 5000) + `"}`, 413, "body_too_large", nil},

		{"no body", "POST", events, "", 400, "invalid_json", nil},
		{"a NUL", "POST", events, "\x00" + good, 400, "invalid_json", nil},

		{"reserved type", "POST", events, good, 400, "reserved_type", []string{"Content-Type", jsonType, "Event-Type", "gap"}},
		{"key too long", "POST", events, good, 400, "invalid_header", []string{"Content-Type", jsonType, "Idempotency-Key", strings.Repeat("k", 257)}},

		{"stream with a line break", "POST", streamPath("bad", "a%0Ab"), good, 400, "invalid_name", nil},
		{"stream with a NUL", "POST", streamPath("bad", "%00"), good, 400, "invalid_name", nil},
		{"session of two dots", "POST", streamPath("..", "s"), good, 400, "invalid_name", nil},
		{"stream of two dots", "POST", streamPath("bad", "%2e%2E"), good, 400, "invalid_name", nil},
		{"broken encoding", "POST", streamPath("bad", "%zz"), good, 400, "invalid_name", nil},
		{"empty session", "POST", streamPath("", "s"), good, 404, "not_found", nil},
		{"two slashes first", "GET", "//v1/sessions", "", 404, "not_found", nil},
		{"bad name to read", "GET", streamPath("bad", "%20"), "", 400, "invalid_name", nil},
		{"bad name to read a session", "GET", "/v1/sessions/%20/events", "", 400, "invalid_name", nil},
		{"bad name to look at", "GET", "/v1/sessions/%20", "", 400, "invalid_name", nil},

		{"limit that is no number", "GET", events + "?limit=ten", "", 400, "invalid_parameter", nil},
		{"limit of zero", "GET", events + "?limit=0", "", 400, "invalid_parameter", nil},
		{"limit too large", "GET", events + "?limit=1001", "", 400, "invalid_parameter", nil},
		{"limit beyond numbers", "GET", events + "?limit=99999999999999999999", "", 400, "invalid_parameter", nil},
		{"limit of nothing", "GET", events + "?limit=", "", 400, "invalid_parameter", nil},
		{"two limits", "GET", events + "?limit=1&limit=2", "", 400, "invalid_parameter", nil},
		{"two places", "GET", events + "?after=a&after=b", "", 400, "invalid_parameter", nil},
		{"from of nothing", "GET", events + "?from=", "", 400, "invalid_parameter", nil},
		{"envelope of nothing", "GET", events + "?envelope", "", 400, "invalid_parameter", nil},
		{"two list limits", "GET", "/v1/sessions?limit=1&limit=1", "", 400, "invalid_parameter", nil},
		{"list limit of nothing", "GET", "/v1/sessions?limit=", "", 400, "invalid_parameter", nil},
		{"wait that is no number", "GET", events + "?wait=soon", "", 400, "invalid_parameter", nil},
		{"wait too long", "GET", events + "?wait=61", "", 400, "invalid_parameter", nil},
		{"from nowhere", "GET", events + "?from=there", "", 400, "invalid_parameter", nil},
		{"unknown on_gap", "GET", events + "?on_gap=ignore", "", 400, "invalid_parameter", nil},
		{"envelope of neither", "GET", events + "?envelope=perhaps", "", 400, "invalid_parameter", nil},
		{"list limit that is no number", "GET", "/v1/sessions?limit=x", "", 400, "invalid_parameter", nil},
		{"list state that is none", "GET", "/v1/sessions?state=gone", "", 400, "invalid_parameter", nil},
		{"list order that is none", "GET", "/v1/sessions?sort=size", "", 400, "invalid_parameter", nil},
		{"place of another order", "GET", "/v1/sessions?sort=bytes&after=bad", "", 400, "invalid_parameter", nil},
		{"a sweep that is neither dry nor real", "POST", "/v1/sweep?dry_run=1", "", 400, "invalid_parameter", nil},
		{"wrong method on a sweep", "GET", "/v1/sweep", "", 405, "method_not_allowed", nil},
		{"an unknown form", "GET", events, "", 406, "not_acceptable", []string{"Accept", "application/xml"}},
		{"another host", "GET", events, "", 403, "host_not_allowed", []string{"Host", "rejoin.example"}},

		{"metadata that is no object", "POST", "/v1/sessions", `{"session":"m","metadata":1}`, 400, "invalid_body", nil},
		{"close of what is not there", "DELETE", "/v1/sessions/unknown", "", 404, "not_found", nil},
		{"look at what is not there", "GET", "/v1/sessions/unknown", "", 404, "not_found", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			headers := c.headers
			if headers == nil && c.body != "" || c.method == "POST" && headers == nil {
				headers = []string{"Content-Type", jsonType}
			}
			req := must.Value(newRequest(c.method, p.api(), c.body, headers...))(t)
			// Go's own parser of URLs would change or refuse some.
			if req.URL.Opaque = c.path; strings.HasPrefix(c.path, "//") {
				req.URL.Opaque = p.api() + c.path
			}
			a := must.Value(trySend(client, req))(t)
			a.got(t, c.status)
			if a.status == 405 && !strings.Contains(a.header.Get("Allow"), "OPTIONS") {
				t.Errorf("Allow is %q", a.header.Get("Allow"))
			}
			if c.method == http.MethodHead {
				return // it has no body
			}
			if got := a.header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("the content type is %q", got)
			}
			var problem struct {
				Type, Title, Code string
				Status            int
			}
			if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
				t.Fatalf("%v: %s", err, a.body)
			}
			if problem.Code != c.code || problem.Status != c.status || problem.Title == "" || problem.Type != "urn:rejoin:problem:"+c.code {
				t.Errorf("the problem is %s", a.body)
			}
		})
	}

	// Nothing is stored, and the service continues.
	list := do(t, http.MethodGet, p.api()+"/v1/sessions", "")
	if want := `{"sessions":[],"total":0}`; list.status != http.StatusOK || list.body != want {
		t.Errorf("the sessions are %d %s, want %s", list.status, list.body, want)
	}
	s := p.subscribe(events, "")
	s.connected()
	p.publish("bad", "s", 1, 2)
	s.numbers(1, 2)
}

// compact takes out the white space between tokens and changes nothing else.
func compact(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return b.String()
}
