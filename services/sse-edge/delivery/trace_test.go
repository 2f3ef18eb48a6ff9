package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/tracing"
)

func sampled(sequence uint64, at window.Place, flags string) eventlog.Entry {
	e := messageAt(sequence, at, "{}")
	e.Trace = tracing.Context{Parent: fmt.Sprintf("00-%032x-%016x-%s", sequence, sequence, flags)}
	return e
}

// untraced returns a set without streams.
func untraced() *Connections {
	return &Connections{Metrics: NewMetrics(prometheus.NewRegistry(), 1), History: newHistory(), cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
}

// newTraced returns the parts of an edge that traces need.
func newTraced(t testing.TB, sampler sdk.Sampler) (*Connections, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sampler))
	t.Cleanup(func() {
		if err := p.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s := untraced()
	s.cfg.Traces = tracing.New(p)
	return s, spans
}

func TestSpans_FirstDeliveries(t *testing.T) {
	s, spans := newTraced(t, sdk.ParentBased(sdk.NeverSample()))
	w, at := emptyWindow(1<<20), window.Place{Session: "s", Stream: "t"}
	w.Append(sampled(1, at, "01"), 0)
	w.Append(sampled(2, at, "00"), 0)
	r := cursor.InMemory(w, at, 0)
	v := w.Read(&r.ChainCursor, window.Limits{Events: 10, Bytes: 1 << 10}, nil)
	by := Request{Ctx: t.Context(), Begun: time.Now()}
	s.CountTold(r, cursor.Step{Items: v.Items}, 0, by)
	if n := len(spans.GetSpans()); n > 0 {
		t.Errorf("%d spans of what was not sent", n)
	}
	for range 2 * maxDeliveries {
		s.CountTold(r, cursor.Step{Items: v.Items}, 3, by) // two, and the end of the stream
	}
	all := spans.GetSpans()
	if len(all) != maxDeliveries {
		t.Fatalf("there are %d spans", len(all))
	}
	for i, span := range all {
		if span.Parent.SpanID().String() != fmt.Sprintf("%016x", 1) || span.Name != tracing.Deliver.Name {
			t.Errorf("span %d is %+v", i, span)
		}
	}
}

func TestSpans_NotSampled(t *testing.T) {
	s, spans := newTraced(t, sdk.NeverSample())
	w, at := emptyWindow(1<<20), window.Place{Session: "s", Stream: "t"}
	w.Append(sampled(1, at, "01"), 0)
	r := cursor.InMemory(w, at, 0)
	v := w.Read(&r.ChainCursor, window.Limits{Events: 10, Bytes: 1 << 10}, nil)
	s.CountTold(r, cursor.Step{Items: v.Items}, 1, Request{Ctx: t.Context(), Begun: time.Now()})
	if n := len(spans.GetSpans()); n > 0 {
		t.Errorf("there are %d spans", n)
	}
}

// The additional cost of traces for a step of one event, for each client.
func BenchmarkTold(b *testing.B) {
	w, at := emptyWindow(1<<20), window.Place{Session: "s", Stream: "t"}
	w.Append(sampled(1, at, "00"), 0)
	r := cursor.InMemory(w, at, 0)
	c := cursor.Step{Items: w.Read(&r.ChainCursor, window.Limits{Events: 10, Bytes: 1 << 10}, nil).Items}
	on, _ := newTraced(b, sdk.NeverSample())
	for name, s := range map[string]*Connections{"off": untraced(), "unsampled": on} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.CountTold(r, c, 1, Request{})
			}
		})
	}
}
