package resultcache

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"rejoin/shared/clocks"
	"rejoin/shared/mcp"
)

// clock is a clock that a test sets: the time, and for how long the machine was suspended.
type clock struct {
	at        time.Time
	suspended time.Duration
}

func (c *clock) now() clocks.Instant {
	wall := time.Duration(c.at.UnixNano())
	return clocks.Instant{Mono: wall - c.suspended, Wall: wall}
}

func newCache(maxBytes int) (*Cache, *clock) {
	c := &clock{at: time.Date(2026, 7, 28, 0, 0, 0, 0, time.UTC)}
	return New(maxBytes, c.now), c
}

const metaOfAll = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

func parse(t *testing.T, data string) mcp.Request {
	t.Helper()
	r, err := mcp.Parse([]byte(data))
	if err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return r
}

func list(t *testing.T, method, params string) mcp.Request {
	t.Helper()
	return parse(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s"_meta":{%s}}}`, method, params, metaOfAll))
}

func public(ttl string) json.RawMessage {
	return json.RawMessage(`{"resultType":"complete","cacheScope":"public","ttlMs":` + ttl + `,"tools":[]}`)
}

// keep has the cache keep the result of a request, of which it has none yet.
func (c *Cache) keep(t *testing.T, r mcp.Request, header http.Header, result json.RawMessage) {
	t.Helper()
	had, q := c.Get(r, header)
	if had != nil || q == nil {
		t.Fatalf("there is %s before the request is made", had)
	}
	c.Put(*q, result)
}

func (c *Cache) has(r mcp.Request, header http.Header) bool {
	result, _ := c.Get(r, header)
	return result != nil
}

func TestGet_Key(t *testing.T) {
	const first = `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x:","_meta":{` + metaOfAll + `,"progressToken":1,"traceparent":"a"}}}`
	header := func(fields ...string) http.Header {
		h := http.Header{"Accept-Language": {"de"}, "Traceparent": {"a"}}
		for i := 0; i < len(fields); i += 2 {
			h.Set(fields[i], fields[i+1])
		}
		return h
	}
	for name, tt := range map[string]struct {
		old, now string
		header   http.Header
		same     bool
	}{
		"ID":                   {`"id":1`, `"id":"b"`, nil, true},
		"progress token":       {`"progressToken":1`, `"progressToken":2`, nil, true},
		"no progress token":    {`,"progressToken":1`, ``, nil, true},
		"trace":                {`"traceparent":"a"`, `"traceparent":"b","tracestate":"c=d"`, header("Traceparent", "b", "Tracestate", "c=d"), true},
		"order and blanks":     {`{"uri":"x:",`, `{ "uri" : "x:" ,`, nil, true},
		"method":               {`resources/read`, `resources/list`, nil, false},
		"parameter":            {`"uri":"x:"`, `"uri":"y:"`, nil, false},
		"another parameter":    {`"uri":"x:"`, `"uri":"x:","cursor":"2"`, nil, false},
		"case of a parameter":  {`"uri":"x:"`, `"uri":"x:","URI":"y:"`, nil, false},
		"capabilities":         {`clientCapabilities":{}`, `clientCapabilities":{"roots":{}}`, nil, false},
		"version":              {`2026-07-28`, `2027-01-01`, nil, false},
		"client":               {`"progressToken":1`, `"io.modelcontextprotocol/clientInfo":{"name":"x"}`, nil, false},
		"baggage":              {`"progressToken":1`, `"baggage":"x=y"`, nil, false},
		"forwarded field":      {``, ``, header("Accept-Language", "en"), false},
		"forwarded field more": {``, ``, header("X-Tenant", "1"), false},
	} {
		c, _ := newCache(1 << 20)
		c.keep(t, parse(t, first), header(), public("1000"))
		h := tt.header
		if h == nil {
			h = header()
		}
		if got := c.has(parse(t, strings.Replace(first, tt.old, tt.now, 1)), h); got != tt.same {
			t.Errorf("%s: there is a result: %v", name, got)
		}
	}
}

// The server gets a member only once if a client writes it twice, so the client cannot have the result
// of one request kept as that of another.
func TestGet_NamesTwice(t *testing.T) {
	for name, data := range map[string]string{
		"parameter": `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"evil:","uri":"x:","_meta":{` + metaOfAll + `}}}`,
		"meta":      `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x:","_meta":{"io.modelcontextprotocol/clientCapabilities":{"evil":{}},` + metaOfAll + `}}}`,
		"member":    `{"jsonrpc":"2.0","id":1,"method":"resources/read","PARAMS":{"uri":"evil:"},"params":{"uri":"x:","_meta":{` + metaOfAll + `}}}`,
	} {
		c, _ := newCache(1 << 20)
		if _, q := c.Get(parse(t, data), nil); q == nil || strings.Contains(string(q.Data), "evil") || !strings.Contains(string(q.Data), `"uri":"x:"`) {
			t.Errorf("%s: the server gets %s", name, q.Data)
		}
	}
}

func TestGet_NotCacheable(t *testing.T) {
	c, _ := newCache(1 << 20)
	for _, r := range []mcp.Request{
		list(t, "tools/call", `"name":"x",`), list(t, "prompts/get", `"name":"x",`), list(t, "completion/complete", ""),
		list(t, "subscriptions/listen", ""), list(t, "resources/read", `"uri":"x:","requestState":"s",`),
		list(t, "resources/read", `"uri":"x:","inputResponses":{},`), list(t, "tools/list", `"inputResponses":null,`),
	} {
		if _, q := c.Get(r, nil); q != nil {
			t.Errorf("the result of %s may be kept", q.Data)
		}
	}
	for _, method := range []string{"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
		r := list(t, method, "")
		c.keep(t, r, nil, public("1000"))
		if !c.has(r, nil) {
			t.Errorf("%s: the result is not kept", method)
		}
	}
}

func TestPut_NotShared(t *testing.T) {
	r := list(t, "tools/list", "")
	for _, result := range []string{
		`{"resultType":"complete","ttlMs":1000,"cacheScope":"private"}`,
		`{"resultType":"complete","ttlMs":1000}`,
		`{"resultType":"complete","ttlMs":1000,"cacheScope":"Public"}`,
		`{"resultType":"complete","ttlMs":1000,"cacheScope":true}`,
		`{"resultType":"complete","ttlMs":1000,"CacheScope":"public"}`,
		`{"resultType":"input_required","ttlMs":1000,"cacheScope":"public"}`,
		`{"ttlMs":1000,"cacheScope":"public"}`,
		`{"resultType":"complete","cacheScope":"public"}`,
		`{"resultType":"complete","ttlMs":0,"cacheScope":"public"}`,
		`{"resultType":"complete","ttlMs":-1,"cacheScope":"public"}`,
		`{"resultType":"complete","ttlMs":"1000","cacheScope":"public"}`,
		`{"resultType":"complete","ttlMs":1e300,"cacheScope":"public"}`,
		`[]`, `null`, ``,
	} {
		c, _ := newCache(1 << 20)
		if c.keep(t, r, nil, json.RawMessage(result)); c.has(r, nil) {
			t.Errorf("%s is kept", result)
		}
	}
}

func TestGet_TimeThatRemains(t *testing.T) {
	c, clock := newCache(1 << 20)
	r := list(t, "tools/list", "")
	c.keep(t, r, nil, public("1000"))
	for _, tt := range []struct {
		pass time.Duration
		want string
	}{
		{0, `{"ttlMs":1000,"cacheScope":"public","resultType":"complete","tools":[]}`},
		{400 * time.Millisecond, `{"ttlMs":600,"cacheScope":"public","resultType":"complete","tools":[]}`},
		{100 * time.Microsecond, `{"ttlMs":599,"cacheScope":"public","resultType":"complete","tools":[]}`},
		{599 * time.Millisecond, ``},
	} {
		clock.at = clock.at.Add(tt.pass)
		if got, _ := c.Get(r, nil); string(got) != tt.want {
			t.Errorf("after %s: %s", tt.pass, got)
		}
	}
	c.keep(t, r, nil, public("9223372036854775807"))
	if clock.at = clock.at.Add(keptFor - 1); !c.has(r, nil) {
		t.Error("a result that stays fresh is not kept")
	}
	if clock.at = clock.at.Add(1); c.has(r, nil) {
		t.Errorf("a result is served after %s", keptFor)
	}
}

// The monotonic clock stands still while the machine is suspended.
func TestGet_MachineWasSuspended(t *testing.T) {
	c, clock := newCache(1 << 20)
	r := list(t, "tools/list", "")
	c.keep(t, r, nil, public("60000"))
	clock.at, clock.suspended = clock.at.Add(time.Minute), time.Minute
	if c.has(r, nil) {
		t.Error("a result is served after its time")
	}
}

func TestChanged_EndsItsKind(t *testing.T) {
	methods := []string{"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
	for notification, kind := range map[string]string{
		"notifications/tools/list_changed": "tools/", "notifications/prompts/list_changed": "prompts/",
		"notifications/resources/list_changed": "resources/", "notifications/resources/updated": "resources/",
		"notifications/progress": "none", "": "none",
	} {
		c, _ := newCache(1 << 20)
		pending := map[string]*Request{}
		for _, method := range methods {
			c.keep(t, list(t, method, `"uri":"x:",`), nil, public("1000"))
			_, pending[method] = c.Get(list(t, method, `"uri":"y:",`), nil)
		}
		if changed := c.Changed(notification); changed != (kind != "none") {
			t.Errorf("%q ends results: %v", notification, changed)
		}
		for _, method := range methods {
			// The result of a request that was sent before the notification may be an old one.
			c.Put(*pending[method], public("1000"))
			for _, uri := range []string{"x:", "y:"} {
				r := list(t, method, fmt.Sprintf(`"uri":%q,`, uri))
				if has := c.has(r, nil); has == strings.HasPrefix(method, kind) {
					t.Errorf("%q: there is a result of %s %s: %v", notification, method, uri, has)
				}
			}
		}
	}
}

func TestPut_Bounded(t *testing.T) {
	const maxBytes = 64 << 10
	c, _ := newCache(maxBytes)
	result := func(size int) json.RawMessage {
		return json.RawMessage(`{"resultType":"complete","cacheScope":"public","ttlMs":1000,"x":"` + strings.Repeat("x", size) + `"}`)
	}
	page := func(n int) mcp.Request { return list(t, "tools/list", fmt.Sprintf(`"cursor":"%d",`, n)) }
	for n := range 100 {
		c.keep(t, page(n), nil, result(4<<10))
		_, again := c.Get(page(1000+n), nil)
		c.Put(*again, result(10))
		c.Put(*again, result(20)) // in the place of the first
		held := 0
		for _, e := range c.entries.Values() {
			held += e.size()
		}
		if c.bytes != held || held > maxBytes {
			t.Fatalf("after %d: %d bytes are counted, and %d held", n, c.bytes, held)
		}
	}
	if !c.has(page(99), nil) || c.has(page(0), nil) {
		t.Error("it is not the oldest that is left out")
	}
	if c.keep(t, page(100), nil, result(maxBytes/4)); c.has(page(100), nil) {
		t.Error("a result takes more than a quarter")
	}
	c, _ = newCache(1 << 30)
	for n := range maxEntries + 10 {
		c.keep(t, page(n), nil, public("1000"))
	}
	if n := c.entries.Len(); n != maxEntries {
		t.Errorf("%d results are kept", n)
	}
	if c.keep(t, page(-1), nil, result(maxResult)); c.has(page(-1), nil) {
		t.Error("a result larger than the limit is kept")
	}
}
