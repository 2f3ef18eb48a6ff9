package edge

import (
	"iter"
	"math"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// mediaStream is the media type of an event stream.
const mediaStream = "text/event-stream"

// unreadable stands for a weight that is none: what has it is acceptable, and nothing is
// preferred less.
const unreadable = 1e-9

// accepted yields the media types of an Accept header in lower case, with their weights
// (RFC 9110, 12.5.1).
func accepted(accept string) iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for item := range strings.SplitSeq(accept, ",") {
			media, params, _ := strings.Cut(item, ";")
			weight := 1.0
			if q, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q="); ok {
				var err error
				if weight, err = strconv.ParseFloat(q, 64); err != nil || weight < 0 || math.IsNaN(weight) {
					weight = unreadable
				}
			}
			if !yield(strings.ToLower(strings.TrimSpace(media)), weight) {
				return
			}
		}
	}
}

// accepts reports whether an Accept header lists a media type.
func accepts(accept, media string) bool {
	class, _, _ := strings.Cut(media, "/")
	for name, weight := range accepted(accept) {
		if weight != 0 && (name == media || name == class+"/*" || name == "*/*") {
			return true
		}
	}
	return false
}

// prefersStream reports whether an Accept header prefers an event stream to JSON: by its
// weights, and, when these are the same, by which comes first.
func prefersStream(accept string) bool {
	stream, plain, first := 0.0, 0.0, false
	for name, weight := range accepted(accept) {
		switch name {
		case mediaStream:
			stream, first = weight, plain == 0
		case fiber.MIMEApplicationJSON:
			plain = weight
		}
	}
	return stream > plain || stream == plain && stream > 0 && first
}

type responseForm uint8

const (
	formNone responseForm = iota
	formStream
	formPage
)

// form chooses between stream and page: what an Accept header names first, unless its
// weight is 0. No header, and */*, mean the stream.
func form(accept string) responseForm {
	if strings.TrimSpace(accept) == "" {
		return formStream
	}
	for name, weight := range accepted(accept) {
		if weight == 0 {
			continue
		}
		switch name {
		case mediaStream, "text/*", "*/*":
			return formStream
		case fiber.MIMEApplicationJSON, "application/*":
			return formPage
		}
	}
	return formNone
}
