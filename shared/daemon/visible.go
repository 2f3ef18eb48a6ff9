package daemon

import (
	"bytes"
	"fmt"
	"io"
)

// Escape returns text without the control characters that JSON and slog's handlers let through,
// and that a terminal may obey: DEL and C1, from U+0080 to U+009F. In JSON such characters are
// in strings only.
func Escape(text []byte) []byte {
	controls := func(r rune) bool { return r >= 0x7f && r <= 0x9f }
	if !bytes.ContainsFunc(text, controls) {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		if controls(r) {
			_, _ = fmt.Fprintf(&b, `\u%04x`, r) // a buffer takes all
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// visible is a writer that escapes text for a terminal.
type visible struct{ w io.Writer }

// Write writes whole lines.
func (v visible) Write(line []byte) (int, error) {
	if _, err := v.w.Write(Escape(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
