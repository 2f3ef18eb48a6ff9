package daemon

import (
	"fmt"
	"io"
)

// visible escapes the control characters that slog's handlers let through, and that a
// terminal may obey when somebody reads the log there: DEL, and in JSON those from U+0080
// to U+009F.
type visible struct{ w io.Writer }

// Write writes whole lines; in those of JSON such characters stand in strings only.
func (v visible) Write(line []byte) (int, error) {
	if nextControl(line) < 0 {
		return v.w.Write(line)
	}
	var out []byte
	for rest := line; ; {
		i := nextControl(rest)
		if i < 0 {
			out = append(out, rest...)
			break
		}
		out = append(out, rest[:i]...)
		if rest[i] == 0x7f {
			out, rest = append(out, `\u007f`...), rest[i+1:]
		} else {
			out, rest = fmt.Appendf(out, `\u%04x`, rest[i+1]), rest[i+2:]
		}
	}
	if _, err := v.w.Write(out); err != nil {
		return 0, err
	}
	return len(line), nil
}

// nextControl returns where the next of these characters is, or -1.
func nextControl(text []byte) int {
	for i, b := range text {
		if b == 0x7f || b == 0xc2 && i+1 < len(text) && text[i+1] < 0xa0 {
			return i
		}
	}
	return -1
}
