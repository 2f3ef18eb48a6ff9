package subscriber

import (
	"strings"
	"testing"
)

func TestAccept_SameForAllRoutes(t *testing.T) {
	for accept, want := range map[string]struct {
		form                  Form
		stream, json, prefers bool
	}{
		"":                                    {FormStream, false, false, false},
		"text/html":                           {FormNone, false, false, false},
		"*/*":                                 {FormStream, true, true, false},
		"text/*, application/*":               {FormStream, true, true, false},
		"Application/JSON":                    {FormPage, false, true, false},
		"application/json, TEXT/Event-Stream": {FormPage, true, true, false},
		"text/event-stream ; q=1, application/json": {FormStream, true, true, true},
		"application/json;q=0.1, text/event-stream": {FormStream, true, true, true},
		"*/*;q=0.5, application/json":               {FormPage, true, true, false},
		"text/event-stream;q=0, application/json":   {FormPage, false, true, false},
		"text/event-stream; q = 0.000, */*;q=0.1":   {FormStream, true, true, false},
		"text/event-stream;q=0.0":                   {FormNone, false, false, false},
		"text/event-stream;q=x, application/json":   {FormPage, true, true, false},
		"text/event-stream;q=-1":                    {FormStream, true, false, true},
		"text/event-stream;charset=utf-8":           {FormStream, true, false, true},
	} {
		if got := FormOf(accept); got != want.form {
			t.Errorf("%q: the form is %d, want %d", accept, got, want.form)
		}
		if stream, json := Accepts(accept, "text/event-stream"), Accepts(accept, "application/json"); stream != want.stream || json != want.json {
			t.Errorf("%q: a stream is accepted %t, JSON %t", accept, stream, json)
		}
		if got := PrefersStream(accept); got != want.prefers {
			t.Errorf("%q: a stream is preferred %t", accept, got)
		}
	}
}

func FuzzAccept(f *testing.F) {
	for _, accept := range []string{"", "*/*", "text/event-stream;q=0.5, application/json", "application/json;q=-1", "text/event-stream;q=NaN,;q=,=,;"} {
		f.Add(accept)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		stream, json := Accepts(accept, "text/event-stream"), Accepts(accept, "application/json")
		switch got := FormOf(accept); {
		case got == FormStream && !stream && strings.TrimSpace(accept) != "":
			t.Error("it gets a stream that it does not accept")
		case got == FormPage && !json:
			t.Error("it gets a page that it does not accept")
		case got == FormNone && (stream || json):
			t.Error("it gets nothing of what it accepts")
		}
		if PrefersStream(accept) && !stream {
			t.Error("it prefers a stream that it does not accept")
		}
	})
}
