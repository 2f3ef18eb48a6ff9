package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"rejoin/shared/tracing"
)

// flushTimeout bounds the export of the last spans, when everything else has ended.
const flushTimeout = 3 * time.Second

// openTraces returns the [tracing.Traces] of a program, nil when the environment does not ask
// for traces, and the function that ends the export. It does ask when OTEL_TRACES_EXPORTER is
// otlp, or OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, unless
// OTEL_SDK_DISABLED is true or the exporter none. The other variables are those of
// OpenTelemetry's SDK: for the sampler, the batches, the exporter, and the resource.
//
// An error of traces is logged, and the program continues. Only this package links the
// exporters: package tracing, which other programs import with package mcpstore, needs
// OpenTelemetry's API alone.
func openTraces(program string, log *slog.Logger) (traces *tracing.Traces, closeTraces func()) {
	if !tracesWanted() {
		return nil, func() {}
	}
	exporter, err := newExporter()
	if err != nil {
		log.Warn("there are no traces", "error", err)
		return nil, func() {}
	}
	about, err := resource.New(context.Background(),
		resource.WithAttributes(semconv.ServiceName(serviceName(program)), semconv.ServiceVersion(CurrentVersion())),
		resource.WithTelemetrySDK(), resource.WithFromEnv()) // the last one counts
	if err != nil {
		log.Warn("traces lack attributes of their resource", "error", err) // the others are there
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("OpenTelemetry reported an error", "error", err) }))
	p := sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithBatcher(&outlet{SpanExporter: exporter, log: log}))
	return tracing.New(p), func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := p.Shutdown(ctx); err != nil {
			log.Warn("the last traces are not exported", "error", err)
		}
	}
}

// serviceName returns the service name in a program's spans, which
// OTEL_SERVICE_NAME overrides: rejoin-ingest, rejoin-sse-edge and so on, and rejoin.
func serviceName(program string) string {
	if program == "rejoin" {
		return program
	}
	return "rejoin-" + program
}

// tracesWanted reports whether the environment asks for traces.
func tracesWanted() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter != "" {
		return exporter != "none"
	}
	return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) != ""
}

// newExporter makes the exporter that the environment asks for. It connects later.
func newExporter() (sdk.SpanExporter, error) {
	if name := os.Getenv("OTEL_TRACES_EXPORTER"); name != "" && name != "otlp" {
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q and must be otlp or none", name)
	}
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")); protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(context.Background())
	case "grpc":
		return otlptracegrpc.New(context.Background())
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q and must be http/protobuf or grpc", protocol)
	}
}

// outlet logs once when spans cannot be exported, and once when they can again.
type outlet struct {
	sdk.SpanExporter
	log    *slog.Logger
	broken atomic.Bool
}

// ExportSpans exports spans. It returns no error: the log has it.
func (o *outlet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := o.SpanExporter.ExportSpans(ctx, spans)
	switch was := o.broken.Swap(err != nil); {
	case err != nil && !was:
		o.log.Warn("traces are not exported", "error", err)
	case err == nil && was:
		o.log.Info("traces are exported again")
	}
	return nil
}
