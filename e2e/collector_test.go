package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"rejoin/shared/waittest"
)

// collector receives traces over OTLP, as OpenTelemetry's own does.
type collector struct {
	t testing.TB

	mu    sync.Mutex
	asked int
	spans []span
}

// span has the fields of a span that tests check.
type span struct {
	service, name     string
	trace, id, parent string
	linked            []string // the IDs of spans
	attributes        map[string]string
	kind              trace.Span_SpanKind
}

// newCollector starts a collector, which the programs that the test starts export to.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{t: t}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", serve(t, c.take).URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	return c
}

// take handles an ExportTraceServiceRequest, which has the fields of TracesData.
func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var data trace.TracesData
	if err == nil {
		err = proto.Unmarshal(body, &data)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	for _, of := range data.GetResourceSpans() {
		service := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, read(service, s))
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func read(service string, s *trace.Span) span {
	out := span{
		service: service, name: s.GetName(), kind: s.GetKind(), trace: fmt.Sprintf("%x", s.GetTraceId()), id: fmt.Sprintf("%x", s.GetSpanId()),
		parent: fmt.Sprintf("%x", s.GetParentSpanId()), attributes: map[string]string{},
	}
	for _, a := range s.GetAttributes() {
		out.attributes[a.GetKey()] = strings.Trim(a.GetValue().String(), `"`)
		if text := a.GetValue().GetStringValue(); text != "" {
			out.attributes[a.GetKey()] = text
		}
	}
	for _, l := range s.GetLinks() {
		out.linked = append(out.linked, fmt.Sprintf("%x", l.GetSpanId()))
	}
	return out
}

// of returns the spans of a trace so far.
func (c *collector) of(trace string) (found []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.trace == trace {
			found = append(found, s)
		}
	}
	return found
}

// one waits for the one span of a trace with a service and the beginning of a name, and
// checks its parent.
func (c *collector) one(t testing.TB, trace, service, name, parent string) (found span) {
	t.Helper()
	waittest.Until(t, "there is "+name+" of "+service, func() bool {
		i := slices.IndexFunc(c.of(trace), func(s span) bool { return s.service == service && strings.HasPrefix(s.name, name) })
		if i >= 0 {
			found = c.of(trace)[i]
		}
		return i >= 0
	})
	if found.parent != parent {
		t.Errorf("%s of %s is a child of %q, want %q", found.name, service, found.parent, parent)
	}
	return found
}
