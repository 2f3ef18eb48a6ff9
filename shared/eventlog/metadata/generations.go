package metadata

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
	"time"

	"rejoin/shared/event"
)

// NewGenerationID returns an ID that no other generation has.
func NewGenerationID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return encodeGenerationID(b)
}

// RunGenerationID returns the ID of the generation that a run of a server that is alone begins in a JetStream stream:
// the same in every process. After a restore in that run the stream is another one, and so is the ID.
func RunGenerationID(server string, created time.Time) string {
	return generationIDOf(server + " " + Made(created))
}

// RestoreGenerationID returns the ID of the generation that begins with a restore, which makes another JetStream stream.
func RestoreGenerationID(created time.Time) string { return generationIDOf(Made(created)) }

func generationIDOf(what string) string {
	sum := sha256.Sum256([]byte(what))
	return encodeGenerationID([10]byte(sum[:10]))
}

func encodeGenerationID(b [10]byte) string {
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// FormatGenerations writes "id:start,id:start".
func FormatGenerations(gens []event.Generation) string {
	items := make([]string, len(gens))
	for i, g := range gens {
		items[i] = g.ID + ":" + strconv.FormatUint(g.Start, 10)
	}
	return strings.Join(items, ",")
}

// ParseGenerations reads the text of [FormatGenerations].
func ParseGenerations(s string) ([]event.Generation, error) {
	var gens []event.Generation
	for item := range strings.SplitSeq(s, ",") {
		id, number, ok := strings.Cut(item, ":")
		start, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil || id == "" {
			return nil, fmt.Errorf("its generations are %q", s)
		}
		gens = append(gens, event.Generation{ID: id, Start: start})
	}
	return gens, nil
}
