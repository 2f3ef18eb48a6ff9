package tracing_test

import (
	"strings"
	"testing"

	"rejoin/shared/tracing"
)

func header(fields ...string) func(name string) []string {
	h := map[string][]string{}
	for i := 0; i < len(fields); i += 2 {
		h[fields[i]] = append(h[fields[i]], fields[i+1])
	}
	return func(name string) []string { return h[name] }
}

func TestParseTraceparent(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for text, want := range map[string]bool{
		"00-" + trace + "-" + parent + "-01":                   true,
		"00-" + trace + "-" + parent + "-00":                   true,
		"cc-" + trace + "-" + parent + "-01":                   true,
		"cc-" + trace + "-" + parent + "-01-what":              false,
		"ff-" + trace + "-" + parent + "-01":                   false,
		"00-" + strings.ToUpper(trace) + "-" + parent + "-01":  false,
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01": false,
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01":  false,
		"00-" + trace + "-" + parent + "-1":                    false,
		"00-" + trace + "-" + parent:                           false,
		"00-" + trace[1:] + "-" + parent + "-01":               false,
		"00-" + trace + "-" + parent + "-0g":                   false,
		" 00-" + trace + "-" + parent + "-01":                  false,
		"":                                                     false, "-": false, "---": false,
	} {
		c := tracing.Read(header("traceparent", text))
		if (c != tracing.Context{}) != want || want && c.Parent != text {
			t.Errorf("%q: %v", text, c)
		}
	}
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestRead_Tracestate(t *testing.T) {
	for name, tt := range map[string]struct {
		fields []string
		want   tracing.Context
	}{
		"nothing":      {nil, tracing.Context{}},
		"a state":      {[]string{"traceparent", parent, "tracestate", "a=b"}, tracing.Context{Parent: parent, State: "a=b"}},
		"two states":   {[]string{"traceparent", parent, "tracestate", "a=b", "tracestate", "c=d"}, tracing.Context{Parent: parent, State: "a=b,c=d"}},
		"a state only": {[]string{"tracestate", "a=b"}, tracing.Context{}},
		"two parents":  {[]string{"traceparent", parent, "traceparent", parent}, tracing.Context{}},
		"long":         {[]string{"traceparent", parent, "tracestate", "a=" + strings.Repeat("b", 511)}, tracing.Context{Parent: parent}},
		"invisible":    {[]string{"traceparent", parent, "tracestate", "a=\x00"}, tracing.Context{Parent: parent}},
	} {
		if got := tracing.Read(header(tt.fields...)); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestContext_OfASpan(t *testing.T) {
	for _, c := range []tracing.Context{
		{Parent: parent, State: "a=b,c=d"}, {Parent: parent}, {Parent: parent[:len(parent)-1] + "0", State: "a=b"}, {},
	} {
		if got := tracing.Of(c.Span()); got != c {
			t.Errorf("%v has become %v", c, got)
		}
		if c.Sampled() != c.Span().IsSampled() {
			t.Errorf("%v is sampled: %v", c, c.Sampled())
		}
	}
}

func TestTraces_Nil(t *testing.T) {
	var off *tracing.Traces
	before := t.Context()
	ctx, span := off.Continue(before, tracing.Context{Parent: parent}, "x", 0)
	span.End()
	if off.On() || span.IsRecording() || ctx != before {
		t.Error("there is a span")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(parent, "a=b")
	f.Add("", "\xff")
	f.Fuzz(func(t *testing.T, parent, state string) {
		c := tracing.Read(header("traceparent", parent, "tracestate", state))
		if c == (tracing.Context{}) {
			return
		}
		if c.Parent != parent || c.State != "" && c.State != state || !c.Span().IsValid() || c.Sampled() != c.Span().IsSampled() {
			t.Errorf("%q, %q is %v", parent, state, c)
		}
	})
}
