package mcpstore

import (
	"crypto/rand"
	"strconv"
	"strings"
)

// index is the number of an event in the SDK's count, as the log has it.
type index struct {
	n int
	// writer is the writer that counted.
	writer string
	// lost marks a note that the Append has failed, without an event.
	lost bool
}

const lostSuffix = ".lost"

// String returns "<n>.<writer>", with ".lost" after it for a note.
func (i index) String() string {
	s := strconv.Itoa(i.n) + "." + i.writer
	if i.lost {
		s += lostSuffix
	}
	return s
}

// parseIndex reads the text of [index.String].
func parseIndex(s string) (index, bool) {
	rest, lost := strings.CutSuffix(s, lostSuffix)
	number, writer, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	i := index{n: n, writer: writer, lost: lost}
	return i, err == nil && n >= 0 && writer != "" && i.String() == s
}

func newWriter() string { return strings.ToLower(rand.Text()[:12]) }
