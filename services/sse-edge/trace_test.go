package edge

import (
	"context"
	"fmt"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"rejoin/shared/eventlog"
	"rejoin/shared/tracing"
)

func sampled(sequence uint64, at place, flags string) eventlog.Entry {
	e := message(sequence, at, "{}")
	e.Trace = tracing.Context{Parent: fmt.Sprintf("00-%032x-%016x-%s", sequence, sequence, flags)}
	return e
}

func TestAWindowRemembersOnlySampledEventsAndNotAllOfThem(t *testing.T) {
	w, at := newTestWindow(64<<20), placeOf("s", "t")
	const events = 3 * maxTrails
	for n := uint64(1); n <= events; n++ {
		flags := "00"
		if n%2 == 0 {
			flags = "01"
		}
		w.append(sampled(n, at, flags), 0)
		if len(w.trails) > maxTrails {
			t.Fatalf("after %d events there are %d trails", n, len(w.trails))
		}
	}
	v := w.read(readerAt(w, at, 0), limits{events, 64 << 20}, nil)
	if len(v.items) != events {
		t.Fatalf("there are %d events", len(v.items))
	}
	for _, it := range v.items[events-maxTrails:] {
		if (it.trail != nil) != (it.sequence%2 == 0) {
			t.Fatalf("event %d has the trail %v", it.sequence, it.trail)
		}
		if it.trail != nil && it.trail.publish.TraceID().String() != fmt.Sprintf("%032x", it.sequence) {
			t.Fatalf("event %d has the trace %s", it.sequence, it.trail.publish.TraceID())
		}
	}
	if v.items[1].trail != nil {
		t.Error("the oldest trail is still there")
	}
	w.rollback(testState(0), 0, 1, 0)
	if len(w.trails) > 0 {
		t.Error("a life that is over has trails")
	}
}

// newTraced returns as much of an edge as traces need.
func newTraced(t testing.TB, sampler sdk.Sampler) (*Service, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sampler))
	t.Cleanup(func() {
		if err := p.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &Service{traces: tracing.New(p), metrics: noMetrics()}, spans
}

func TestOfManyDeliveriesOfAnEventTheFirstHaveSpans(t *testing.T) {
	s, spans := newTraced(t, sdk.ParentBased(sdk.NeverSample()))
	w, at := newTestWindow(1<<20), placeOf("s", "t")
	w.append(sampled(1, at, "01"), 0)
	w.append(sampled(2, at, "00"), 0)
	r := readerAt(w, at, 0)
	r.part = &partition{number: 3}
	v := w.read(r, limits{10, 1 << 10}, nil)
	by := asked{ctx: t.Context(), begun: time.Now()}
	s.told(r, step{items: v.items}, 0, by)
	if n := len(spans.GetSpans()); n > 0 {
		t.Errorf("%d spans of what was not sent", n)
	}
	for range 2 * maxDeliveries {
		s.told(r, step{items: v.items}, 3, by) // two, and the end of the stream
	}
	all := spans.GetSpans()
	if len(all) != maxDeliveries {
		t.Fatalf("there are %d spans", len(all))
	}
	for i, span := range all {
		if span.Parent.SpanID().String() != fmt.Sprintf("%016x", 1) || span.Name != tracing.NameDeliver {
			t.Errorf("span %d is %+v", i, span)
		}
	}
}

func TestAnEdgeWhoseSamplerSaysNoMakesNoSpans(t *testing.T) {
	s, spans := newTraced(t, sdk.NeverSample())
	w, at := newTestWindow(1<<20), placeOf("s", "t")
	w.append(sampled(1, at, "01"), 0)
	r := readerAt(w, at, 0)
	r.part = &partition{}
	v := w.read(r, limits{10, 1 << 10}, nil)
	s.told(r, step{items: v.items}, 1, asked{ctx: t.Context(), begun: time.Now()})
	if n := len(spans.GetSpans()); n > 0 {
		t.Errorf("there are %d spans", n)
	}
}

// What a step of one event costs a worker more, for each client.
func BenchmarkTold(b *testing.B) {
	w, at := newTestWindow(1<<20), placeOf("s", "t")
	w.append(sampled(1, at, "00"), 0)
	r := readerAt(w, at, 0)
	st := step{items: w.read(r, limits{10, 1 << 10}, nil).items}
	on, _ := newTraced(b, sdk.NeverSample())
	for name, s := range map[string]*Service{"off": {metrics: noMetrics()}, "unsampled": on} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.told(r, st, 1, asked{})
			}
		})
	}
}
