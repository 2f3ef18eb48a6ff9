package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"rejoin/services/ingest"
	"rejoin/services/janitor"
	edge "rejoin/services/sse-edge"
	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/must"
	"rejoin/shared/sse"
	"rejoin/shared/web"
)

// openAPI is docs/openapi.yaml, and which of its operations were carried out.
type openAPI struct {
	t        *testing.T
	compiler *jsonschema.Compiler
	ops      map[string]*operation // by method and path
	answered map[string]bool       // operations, with a status that is a success
}

// operation is one of the document.
type operation struct {
	ID         string `json:"operationId"`
	Parameters []struct {
		Ref      string `json:"$ref"`
		Name, In string
	}
	Responses map[string]response
	where     string // JSON pointer
}

type response struct {
	Ref     string `json:"$ref"`
	Content map[string]struct{ Schema json.RawMessage }
}

func readOpenAPI(t *testing.T) *openAPI {
	t.Helper()
	text := must.Value(os.ReadFile("../docs/openapi.yaml"))(t)
	data := must.Value(yaml.YAMLToJSONStrict(text))(t)
	var doc struct {
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Parameters map[string]struct{ Name, In string }
			Responses  map[string]response
			Schemas    map[string]any
		}
	}
	whole := must.Value(jsonschema.UnmarshalJSON(strings.NewReader(string(data))))(t)
	must.NoError(t, json.Unmarshal(data, &doc))
	o := &openAPI{t: t, compiler: jsonschema.NewCompiler(), ops: map[string]*operation{}, answered: map[string]bool{}}
	o.compiler.AssertFormat()
	must.NoError(t, o.compiler.AddResource("file:///openapi.json", whole))
	for name := range doc.Components.Schemas {
		if _, err := o.compiler.Compile("file:///openapi.json#/components/schemas/" + name); err != nil {
			t.Error(err)
		}
	}
	for path, item := range doc.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			op := &operation{where: "/paths/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(path) + "/" + method}
			if err := json.Unmarshal(raw, op); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			for i, p := range op.Parameters {
				if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
					op.Parameters[i].Name, op.Parameters[i].In = doc.Components.Parameters[name].Name, doc.Components.Parameters[name].In
				}
			}
			for status, r := range op.Responses {
				if name, ok := strings.CutPrefix(r.Ref, "#/components/responses/"); ok {
					op.Responses[status] = doc.Components.Responses[name]
				}
			}
			o.ops[strings.ToUpper(method)+" "+path] = op
		}
	}
	return o
}

// query returns the names of an operation's query parameters, sorted.
func (op *operation) query() []string {
	var names []string
	for _, p := range op.Parameters {
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// valid checks a value against one of the document's schemas.
func (o *openAPI) valid(pointer, value string) error {
	schema, err := o.compiler.Compile("file:///openapi.json#" + pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(value))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

// check compares an answer with an operation of the document.
func (o *openAPI) check(name string, a answer) {
	o.t.Helper()
	op := o.ops[name]
	if op == nil {
		o.t.Fatalf("the document has no %s", name)
	}
	status := fmt.Sprint(a.status)
	r, ok := op.Responses[status]
	where := op.where + "/responses/" + status
	if !ok {
		if a.status < http.StatusBadRequest {
			o.t.Errorf("%s: the document has no %d", name, a.status)
			return
		}
		r, where = op.Responses["default"], "/components/responses/Problem"
	} else {
		o.answered[name] = true
	}
	if len(r.Content) == 0 {
		if a.body != "" {
			o.t.Errorf("%s: %d has the body %.100s", name, a.status, a.body)
		}
		return
	}
	media, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if _, ok := r.Content[media]; err != nil || !ok {
		o.t.Errorf("%s: the document has no %d of %q", name, a.status, a.header.Get("Content-Type"))
		return
	}
	switch media {
	case "text/event-stream":
		o.checkEvents(name, a.body)
	case "application/x-ndjson":
		lines := strings.Split(strings.TrimSpace(a.body), "\n")
		for i, line := range lines {
			schema := "Result"
			if i == len(lines)-1 {
				schema = "Summary"
			}
			if err := o.valid("/components/schemas/"+schema, line); err != nil {
				o.t.Errorf("%s: line %s: %v", name, line, err)
			}
		}
	default:
		pointer := where + "/content/" + strings.ReplaceAll(media, "/", "~1") + "/schema"
		if err := o.valid(pointer, a.body); err != nil {
			o.t.Errorf("%s: %d: %v\n%s", name, a.status, err, a.body)
		}
	}
}

// checkEvents compares the events of a stream with the schemas that the document names.
func (o *openAPI) checkEvents(name, body string) {
	o.t.Helper()
	several := name == "GET /v1/events"
	schemas := map[string]string{"connect": "Connect", "gap": "Gap", "close": "Close", "expiring": "Expiring", "state": "State"}
	if several {
		schemas["connect"] = "ConnectSessions"
	}
	if several || name == "GET /v1/sessions/{session}/events" {
		schemas["message"] = "Event"
	}
	dec := sse.NewDecoder(strings.NewReader(body), 1<<20)
	for {
		e, err := dec.Next()
		if err != nil {
			return
		}
		if schema, ok := schemas[e.Type]; ok {
			if err := o.valid("/components/schemas/"+schema, string(e.Data)); err != nil {
				o.t.Errorf("%s: %s %s: %v", name, e.Type, e.Data, err)
			}
		}
	}
}

// streamed reads an event stream until it has all of some texts, or ends.
func (p *proc) streamed(path string, headers []string, until ...string) answer {
	p.t.Helper()
	s := p.subscribe(path, "", headers...)
	a := answer{status: s.resp.StatusCode, header: s.resp.Header}
	lines := bufio.NewScanner(s.resp.Body)
	for slices.ContainsFunc(until, func(text string) bool { return !strings.Contains(a.body, text) }) && lines.Scan() {
		a.body += lines.Text() + "\n"
	}
	return a
}

// The document has the routes that the services have, with their parameters, and docs/http.md has
// its operations.
func TestOpenAPI_Routes(t *testing.T) {
	t.Parallel()
	o := readOpenAPI(t)
	mounted := map[string][]string{"POST /v1/cookie": nil, "DELETE /v1/cookie": nil} // only with access control
	for _, routes := range [][]web.Route{(&ingest.Service{}).Routes(), (&edge.Service{}).Routes(), (&janitor.Service{}).Routes()} {
		for _, r := range routes {
			if strings.HasPrefix(r.Path, "/v1/") {
				mounted[r.Method+" "+regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.Path, "{$1}")] = slices.Sorted(slices.Values(r.Query))
			}
		}
	}
	for name, query := range mounted {
		if op := o.ops[name]; op == nil {
			t.Errorf("the document has no %s", name)
		} else if !slices.Equal(op.query(), query) {
			t.Errorf("%s: the document has the parameters %q, the route %q", name, op.query(), query)
		}
	}
	table, _ := document(t, "../docs/http.md")
	table = strings.ReplaceAll(table, "…", "/v1/sessions/{session}")
	for name, op := range o.ops {
		if _, ok := mounted[name]; !ok {
			t.Errorf("no service has %s", name)
		}
		if !regexp.MustCompile("`" + regexp.QuoteMeta(name) + "[`?]").MatchString(table) {
			t.Errorf("docs/http.md has no %s", name)
		}
		if op.ID == "" || op.Responses["default"].Content == nil {
			t.Errorf("%s has no operationId, or no default response", name)
		}
	}
	for code := range web.Codes {
		problem := fmt.Sprintf(`{"type":"urn:rejoin:problem:%s","title":"","status":400,"code":%q}`, code, code)
		if err := o.valid("/components/schemas/Problem", problem); err != nil {
			t.Errorf("code %s: %v", code, err)
		}
	}
}

// The program's answers match the document, for each of its operations.
func TestOpenAPI_Answers(t *testing.T) {
	t.Parallel()
	o := readOpenAPI(t)
	p := startGuarded(t)
	alice := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Admin, token.Subscribe, token.Publish = true, []auth.Pattern{auth.All}, []auth.Pattern{auth.All}
	})
	headers := []string{"Authorization", "Bearer " + alice}
	as := func(name, path, body string, more ...string) answer {
		t.Helper()
		method, _, _ := strings.Cut(name, " ")
		a := do(t, method, p.url("--edge-addr")+path, body, append(more, headers...)...)
		o.check(name, a)
		return a
	}
	const (
		session = "/v1/sessions/demo"
		stream  = session + "/streams/main"
		events  = stream + "/events"
		publish = "POST /v1/sessions/{session}/streams/{stream}/events"
		read    = "GET /v1/sessions/{session}/streams/{stream}/events"
		flow    = "GET /v1/sessions/{session}/events"
		several = "GET /v1/events"
		create  = "POST /v1/sessions"
		plain   = "application/json"
	)
	created := as(create, "/v1/sessions", `{"session":"demo","metadata":{"a":1},"members":["bob"]}`, "Content-Type", plain)
	as(create, "/v1/sessions", `{"session":"demo"}`, "Content-Type", plain)
	as(create, "/v1/sessions", `{"session":`, "Content-Type", plain)
	as("PUT /v1/sessions/{session}/members", session+"/members", `{"members":["bob","carol"]}`, "Content-Type", plain)
	as(publish, events, `{"n":1}`, "Content-Type", plain, "Idempotency-Key", "k")
	as(publish, events, `{"n":1}`, "Content-Type", plain, "Idempotency-Key", "k")
	as(publish, events, `oops`, "Content-Type", plain)
	as(publish, events, `oops`, "Content-Type", "text/plain")
	as(publish, events, "{}\noops\n", "Content-Type", "application/x-ndjson")
	as(publish, events+"?results=each", "{}\noops\n", "Content-Type", "application/x-ndjson")
	as(publish, events, `[{"message":1},{"message":2,"key":"x","type":"t"}]`, "Content-Type", "application/vnd.rejoin.envelopes+json")
	last := as(publish, session+"/streams/other/events", `{"n":2}`, "Content-Type", plain)
	var stored struct{ ID string }
	if err := json.Unmarshal([]byte(last.body), &stored); err != nil || created.status != http.StatusCreated {
		t.Fatal(created.status, last.body)
	}
	page := as(read, events+"?wait=5", "", "Accept", plain)
	as(flow, session+"/events?after=unknown_0000000_1", "", "Accept", plain)
	as(read, events+"?after=unknown_0000000_1&on_gap=error", "", "Accept", plain)
	as(read, events+"?nothing=1", "")
	as(read, "/v1/sessions/nothing/streams/main/events", "", "Accept", plain)
	if !strings.Contains(page.body, `"n":1`) {
		t.Errorf("the page is %s", page.body)
	}
	for name, path := range map[string]string{
		read: events + "?after=unknown_0000000_1", flow: session + "/events?after=unknown_0000000_1", several: "/v1/events?session=demo&session=late&after=unknown",
	} {
		o.check(name, p.streamed(path, headers, "event: gap", `{"n":1}`, "\n\n"))
	}
	as(several, "/v1/events", "")

	for name, path := range map[string]string{
		"GET /v1/sessions":                       "/v1/sessions?clients=true&limit=1",
		"GET /v1/sessions/{session}":             session,
		"GET /v1/sessions/{session}/connections": session + "/connections",
		"GET /v1/sessions/{session}/timeline":    session + "/timeline",
		"GET /v1/gaps":                           "/v1/gaps",
		"GET /v1/limits":                         "/v1/limits?share=1",
		"POST /v1/sweep":                         "/v1/sweep",
	} {
		as(name, path, "")
		o.check(name, do(t, strings.Fields(name)[0], p.url("--edge-addr")+path, "")) // without a token
	}
	as("POST /v1/sweep", "/v1/sweep?dry_run=true", "")
	as("GET /v1/sessions/{session}", "/v1/sessions/nothing", "")
	as("POST /v1/cookie", "/v1/cookie", "")
	as("DELETE /v1/cookie", "/v1/cookie", "")
	as("DELETE /v1/sessions/{session}/streams/{stream}", stream, "")
	as(publish, events, `{"n":1}`, "Content-Type", plain)
	as("DELETE /v1/sessions/{session}", session+"?clear=true", "")
	as("DELETE /v1/sessions/{session}", "/v1/sessions/nothing", "")
	o.check(read, p.streamed(events, headers, "event: close"))

	for _, name := range slices.Sorted(maps.Keys(o.ops)) {
		if !o.answered[name] {
			t.Errorf("%s was not answered with a success", name)
		}
	}
}
