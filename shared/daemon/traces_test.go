package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/must"
	"rejoin/shared/tracing"
)

// unsetTraces unsets all variables of the environment about traces.
func unsetTraces(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
	} {
		t.Setenv(name, "")
	}
}

const nowhere = "http://127.0.0.1:1"

func TestTraces_OffByDefault(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		on   bool
		says string
	}{
		"nothing":            {},
		"an endpoint":        {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": nowhere}, on: true},
		"one for traces":     {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": nowhere}, on: true},
		"an exporter":        {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, on: true},
		"gRPC":               {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, on: true},
		"disabled":           {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}},
		"none":               {env: map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": nowhere}},
		"another exporter":   {env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, says: "zipkin"},
		"another protocol":   {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, says: "http/json"},
		"a broken resource":  {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_RESOURCE_ATTRIBUTES": "%"}, on: true, says: "resource"},
		"another for others": {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			unsetTraces(t)
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			var log bytes.Buffer
			traces, end := openTraces("ingest", slog.New(slog.NewTextHandler(&log, nil)))
			end()
			if traces.On() != tt.on {
				t.Errorf("traces are on: %v", traces.On())
			}
			if (tt.says == "") != (log.Len() == 0) || !strings.Contains(log.String(), tt.says) {
				t.Errorf("the log says %q", log.String())
			}
		})
	}
}

func TestTraces_ServiceName(t *testing.T) {
	for program, want := range map[string]string{"rejoin": "rejoin", "ingest": "rejoin-ingest", "sse-edge": "rejoin-sse-edge"} {
		if got := serviceName(program); got != want {
			t.Errorf("%s is %s", program, got)
		}
	}
}

// failing is an exporter that fails or does not.
type failing struct {
	sdk.SpanExporter
	err error
}

func (f *failing) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return f.err }

func TestTraces_ExportFailureIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	f := &failing{}
	o := &outlet{SpanExporter: f, log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, err := range []error{nil, errors.New("away"), errors.New("away"), nil, nil} {
		f.err = err
		must.NoError(t, o.ExportSpans(t.Context(), nil))
	}
	if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[0], "not exported") || !strings.Contains(lines[1], "again") {
		t.Errorf("the log says %q", lines)
	}
}

func TestLog_HasTheSpan(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := (&Config{LogFormat: format}).Logger(&out)
		span := tracing.Context{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
		log.With("session", "s").InfoContext(span.Within(t.Context()), "a line")
		log.InfoContext(trace.ContextWithSpan(t.Context(), nil), "another")
		first, second, _ := strings.Cut(out.String(), "\n")
		for _, want := range []string{"trace_id", "0af7651916cd43dd8448eb211c80319c", "span_id", "b7ad6b7169203331", "session"} {
			if !strings.Contains(first, want) || strings.Contains(second, want) {
				t.Errorf("%s: %q: the log says %s", format, want, out.String())
			}
		}
	}
}
