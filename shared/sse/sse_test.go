package sse_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/must"
	"rejoin/shared/sse"
)

func decode(t *testing.T, stream string) []sse.Event {
	t.Helper()
	d := sse.NewDecoder(strings.NewReader(stream), 1<<20)
	var events []sse.Event
	for {
		e, err := d.Next()
		if errors.Is(err, io.EOF) {
			return events
		}
		must.NoError(t, err)
		events = append(events, e)
	}
}

// The cases are the examples of the standard (HTML, 9.2.6) and its corner cases.
func TestDecoder_AsABrowser(t *testing.T) {
	for name, tt := range map[string]struct {
		stream string
		want   []sse.Event
	}{
		"data lines are joined": {"data: YHOO\ndata: +2\ndata: 10\n\n", []sse.Event{{Type: "message", Data: []byte("YHOO\n+2\n10")}}},
		"comments and ids": {
			": test\n\ndata: first\nid: 1\n\ndata:second\nid\n\ndata:  third\n\n",
			[]sse.Event{{ID: "1", HasID: true, Type: "message", Data: []byte("first")}, {HasID: true, Type: "message", Data: []byte("second")}, {Type: "message", Data: []byte(" third")}},
		},
		"empty data is dispatched":        {"data\n\ndata\ndata\n\ndata:", []sse.Event{{Type: "message", Data: []byte("")}, {Type: "message", Data: []byte("\n")}}},
		"all line ends":                   {"data: a\r\rdata: b\r\n\r\ndata: c\n\n", []sse.Event{{Type: "message", Data: []byte("a")}, {Type: "message", Data: []byte("b")}, {Type: "message", Data: []byte("c")}}},
		"a byte order mark is skipped":    {"\xEF\xBB\xBFdata: a\n\n", []sse.Event{{Type: "message", Data: []byte("a")}}},
		"an id alone moves the cursor":    {"id: 7\n\ndata: a\n\n", []sse.Event{{ID: "7", Type: "message", Data: []byte("a")}}},
		"an id with NUL is ignored":       {"id: 7\x00\ndata: a\n\n", []sse.Event{{Type: "message", Data: []byte("a")}}},
		"retry":                           {"retry: 3000\ndata: a\n\n", []sse.Event{{Type: "message", Data: []byte("a"), Retry: 3 * time.Second}}},
		"retry that is no number":         {"retry: 3s\ndata: a\n\n", []sse.Event{{Type: "message", Data: []byte("a")}}},
		"an unfinished block is dropped":  {"data: a\n", nil},
		"a type without data is dropped":  {"event: x\n\ndata: a\n\n", []sse.Event{{Type: "message", Data: []byte("a")}}},
		"the type of a block is kept":     {"event: gap\ndata: {}\n\n", []sse.Event{{Type: "gap", Data: []byte("{}")}}},
		"unknown fields are ignored":      {"foo: bar\ndata: a\n\n", []sse.Event{{Type: "message", Data: []byte("a")}}},
		"only one space behind the colon": {"data:   a\n\n", []sse.Event{{Type: "message", Data: []byte("  a")}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, decode(t, tt.stream)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecoder_EndlessBlock(t *testing.T) {
	for stream, want := range map[string]error{
		strings.Repeat("x", 200):                              sse.ErrTooLong,
		strings.Repeat("data: x\n", 100):                      sse.ErrTooLong,
		strings.Repeat(": still here\n", 100) + "data: x\n\n": nil,
	} {
		if _, err := sse.NewDecoder(strings.NewReader(stream), 100).Next(); !errors.Is(err, want) {
			t.Errorf("error is %v, want %v", err, want)
		}
	}
}

func TestAppendEvent(t *testing.T) {
	got := string(sse.AppendEvent(nil, "s_1234567_8", "progress", []byte("{\"a\":\r\n1,\r\"b\":\n2}")))
	want := "event: progress\nid: s_1234567_8\ndata: {\"a\":\ndata: 1,\ndata: \"b\":\ndata: 2}\n\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := string(sse.AppendRetry(nil, 1500*time.Millisecond)); got != "retry: 1500\n" {
		t.Errorf("got %q", got)
	}
}

// FuzzRoundTrip writes any data as an event and reads it back: the result is one
// event, with the data's line ends as LF.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "a", "a\nb", "a\r\nb\rc", "\n", "\r", "data: x\n\nid: 9\n\n", "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := sse.NewDecoder(bytes.NewReader(sse.AppendEvent(nil, "id", "type", data)), 1<<20)
		e := must.Value(d.Next())(t)
		want := strings.ReplaceAll(strings.ReplaceAll(string(data), "\r\n", "\n"), "\r", "\n")
		if string(e.Data) != want || e.ID != "id" || e.Type != "type" {
			t.Fatalf("got %+v, want data %q", e, want)
		}
		if _, err := d.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("more than one event came out: %v", err)
		}
	})
}

// FuzzDecoder feeds any bytes, split at any place, and expects the same events.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\nid: 1\ndata: b\n\n"), uint8(3))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		whole := sse.NewDecoder(bytes.NewReader(stream), 1<<16)
		parts := sse.NewDecoder(&slowReader{stream, int(size)%7 + 1}, 1<<16)
		for {
			a, errA := whole.Next()
			b, errB := parts.Next()
			if (errA == nil) != (errB == nil) || !cmp.Equal(a, b) {
				t.Fatalf("%+v, %v and %+v, %v", a, errA, b, errB)
			}
			if errA != nil {
				return
			}
		}
	})
}

type slowReader struct {
	data []byte
	n    int
}

func (r *slowReader) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(r.n, len(p))], r.data)
	r.data = r.data[n:]
	return n, nil
}
