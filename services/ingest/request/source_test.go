package request

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// FuzzLines reads any text as NDJSON: every line that is not empty is one element or
// one error, and an element's data lies in its line.
func FuzzLines(f *testing.F) {
	for _, s := range []string{
		"{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n", "\r\n\n", "{\"message\":{},\"key\":\"k\",\"type\":\"t\"}", "{\"message\":1,\"message\":2}", "[\n]", strings.Repeat("x", 4000) + "\n1", "{\"message\":null}", "\x00\n\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want := 0
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if len(bytes.TrimSpace(line)) > 0 || len(line) > 1000+envelopeBytes {
				want++
			}
		}
		l := NewLines(iotest.OneByteReader(bytes.NewReader(text)), len(text)%2 == 0, 1000, func() {}, nil, "")
		for got := 0; ; got++ {
			e, err := l.Next()
			if errors.Is(err, io.EOF) {
				if got != want {
					t.Fatalf("%d elements in %q, want %d", got, text, want)
				}
				return
			}
			if _, ok := errors.AsType[*LineError](err); err != nil && !ok {
				t.Fatal(err)
			}
			if err == nil && !bytes.Contains(text, e.Data) {
				t.Fatalf("%q is not in %q", e.Data, text)
			}
		}
	})
}

// The bytes of an element count with its array.
func TestArrays_ElementsAreParts(t *testing.T) {
	text := []byte(` [ 1,"2]" , [3,{}] ]`)
	from, err := NewArrays(1).Read(text, false)
	for _, want := range []string{`1`, `"2]"`, `[3,{}]`} {
		e, nextErr := from.Next()
		if at := bytes.Index(text, []byte(want)); err != nil || nextErr != nil || string(e.Data) != want || &e.Data[0] != &text[at] {
			t.Errorf("%q, %v, %v, want %q", e.Data, err, nextErr, want)
		}
	}
	if _, err := from.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
