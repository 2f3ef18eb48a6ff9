package edge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/tracing"
	"rejoin/shared/waittest"
)

// traced has the edges of a fixture make spans of everything.
func (f *fixture) traced() *tracetest.InMemoryExporter {
	f.t.Helper()
	spans := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.AlwaysSample()))
	f.t.Cleanup(func() {
		if err := p.Shutdown(context.Background()); err != nil {
			f.t.Error(err)
		}
	})
	f.traces = tracing.New(p)
	return spans
}

// publishTraced publishes an event with a trace of its own.
func (f *fixture) publishTraced(name string, trace int) {
	f.t.Helper()
	_, err := f.Backend.Log.Publish(waittest.Context(f.t), eventlog.Event{
		Session: name, Life: f.Life(name), Stream: "a", Data: []byte("{}"),
		Trace: tracing.Context{Parent: fmt.Sprintf("00-%032x-%016x-01", trace, trace)},
	})
	must.NoError(f.t, err)
}

// spansOf waits for n spans of a name, and returns their parents and some of their attributes, sorted.
func spansOf(t *testing.T, spans *tracetest.InMemoryExporter, name string, n int, keys ...string) string {
	t.Helper()
	var all []string
	waittest.Until(t, fmt.Sprint(n, " spans of ", name), func() bool {
		all = nil
		for _, span := range spans.GetSpans() {
			if span.Name != name {
				continue
			}
			b := strings.TrimLeft(span.Parent.SpanID().String(), "0")
			if name == tracing.Resume.Name {
				b = ""
			}
			for _, key := range keys {
				for _, a := range span.Attributes {
					if string(a.Key) == key {
						b += " " + a.Value.String()
					}
				}
			}
			all = append(all, b)
		}
		return len(all) >= n
	})
	slices.Sort(all)
	return strings.Join(all, ",")
}

// Each event of a connection of several sessions has a span as on one of its own stream, and so has a resume.
func TestGroup_Spans(t *testing.T) {
	for _, query := range []string{"?session=s&session=x", "?session=*"} {
		t.Run(query, func(t *testing.T) {
			f := &fixture{Log: edgetest.NewLogOf(t, 2), t: t}
			spans := f.traced()
			f.Create("s", "")
			f.Create("x", "")
			s, _ := f.startService(nil)
			s.knows(t, "s", "x")
			c := subscribe(t, s.url()+"/v1/events"+query)
			c.connects()
			f.publishTraced("s", 1)
			at := c.groupEvents(1)[0].at
			f.publishTraced("x", 2)
			c.groupEvents(1)
			keys := []string{"messaging.destination.name", "rejoin.session", "rejoin.stream", "rejoin.delivery", "rejoin.source"}
			want := fmt.Sprintf("1 mcp.%d.s.%s.a s a 1 window,2 mcp.%d.x.%s.a x a 1 window",
				f.Backend.Log.Partition("s"), f.Life("s"), f.Backend.Log.Partition("x"), f.Life("x"))
			if got := spansOf(t, spans, tracing.Deliver.Name, 2, keys...); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			c = subscribe(t, s.url()+"/v1/events"+query, "Last-Event-ID", at)
			c.connects()
			c.groupEvents(1)
			if got := spansOf(t, spans, tracing.Resume.Name, 1, "rejoin.session", "rejoin.events", "rejoin.source"); got != " 1 window" {
				t.Errorf("the resume has %q", got)
			}
		})
	}
}
