package eventlog

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"

	"rejoin/shared/event"
)

func newGenerationID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// formatGenerations writes "id:start,id:start".
func formatGenerations(gens []event.Generation) string {
	var b strings.Builder
	for i, g := range gens {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(g.ID)
		b.WriteByte(':')
		b.WriteString(strconv.FormatUint(g.Start, 10))
	}
	return b.String()
}

func parseGenerations(s string) ([]event.Generation, error) {
	var gens []event.Generation
	for item := range strings.SplitSeq(s, ",") {
		id, number, ok := strings.Cut(item, ":")
		start, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || id == "" {
			return nil, fmt.Errorf("%w: its generations are %q", ErrMismatch, s)
		}
		gens = append(gens, event.Generation{ID: id, Start: start})
	}
	return gens, nil
}
