package edge

import (
	"strings"
	"testing"
)

func TestAccept_SameForAllRoutes(t *testing.T) {
	for accept, want := range map[string]struct {
		form                  responseForm
		stream, json, prefers bool
	}{
		"":                                    {formStream, false, false, false},
		"text/html":                           {formNone, false, false, false},
		"*/*":                                 {formStream, true, true, false},
		"text/*, application/*":               {formStream, true, true, false},
		"Application/JSON":                    {formPage, false, true, false},
		"application/json, TEXT/Event-Stream": {formPage, true, true, false},
		"text/event-stream ; q=1, application/json": {formStream, true, true, true},
		"application/json;q=0.1, text/event-stream": {formPage, true, true, true},
		"text/event-stream;q=0, application/json":   {formPage, false, true, false},
		"text/event-stream; q = 0.000, */*;q=0.1":   {formStream, true, true, false},
		"text/event-stream;q=0.0":                   {formNone, false, false, false},
		"text/event-stream;q=x, application/json":   {formStream, true, true, false},
		"text/event-stream;q=-1":                    {formStream, true, false, true},
		"text/event-stream;charset=utf-8":           {formStream, true, false, true},
	} {
		if got := form(accept); got != want.form {
			t.Errorf("%q: the form is %d, want %d", accept, got, want.form)
		}
		if stream, json := accepts(accept, "text/event-stream"), accepts(accept, "application/json"); stream != want.stream || json != want.json {
			t.Errorf("%q: a stream is accepted %t, JSON %t", accept, stream, json)
		}
		if got := prefersStream(accept); got != want.prefers {
			t.Errorf("%q: a stream is preferred %t", accept, got)
		}
	}
}

func FuzzAccept(f *testing.F) {
	for _, accept := range []string{"", "*/*", "text/event-stream;q=0.5, application/json", "application/json;q=-1", "text/event-stream;q=NaN,;q=,=,;"} {
		f.Add(accept)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		stream, json := accepts(accept, "text/event-stream"), accepts(accept, "application/json")
		switch got := form(accept); {
		case got == formStream && !stream && strings.TrimSpace(accept) != "":
			t.Error("it gets a stream that it does not accept")
		case got == formPage && !json:
			t.Error("it gets a page that it does not accept")
		case got == formNone && (stream || json):
			t.Error("it gets nothing of what it accepts")
		}
		if prefersStream(accept) && !stream {
			t.Error("it prefers a stream that it does not accept")
		}
	})
}
