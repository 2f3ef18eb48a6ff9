package subscriber

import (
	"iter"
	"math"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// MediaStream is the media type of an event stream.
const MediaStream = "text/event-stream"

// unreadable stands for a weight that cannot be read: a media type with it is acceptable,
// and none is preferred less.
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

// Accepts reports whether an Accept header lists a media type.
func Accepts(accept, media string) bool {
	class, _, _ := strings.Cut(media, "/")
	for name, weight := range accepted(accept) {
		if weight != 0 && (name == media || name == class+"/*" || name == "*/*") {
			return true
		}
	}
	return false
}

// PrefersStream reports whether an Accept header prefers an event stream to JSON: by its
// weights, and, when these are the same, by which comes first.
func PrefersStream(accept string) bool {
	stream, plain, first := 0.0, 0.0, false
	for name, weight := range accepted(accept) {
		switch name {
		case MediaStream:
			stream, first = weight, plain == 0
		case fiber.MIMEApplicationJSON:
			plain = weight
		}
	}
	return stream > plain || stream == plain && stream > 0 && first
}

// Form is the form of an answer to a subscriber.
type Form uint8

// FormNone stands for forms that the edge does not have.
const (
	FormNone Form = iota
	FormStream
	FormPage
)

// FormOf chooses between stream and page: the form to which an Accept header gives the greatest weight,
// and the first one of those with the same. No header, and */*, mean the stream.
func FormOf(accept string) (form Form) {
	if strings.TrimSpace(accept) == "" {
		return FormStream
	}
	greatest := 0.0
	for name, weight := range accepted(accept) {
		if weight <= greatest {
			continue
		}
		switch name {
		case MediaStream, "text/*", "*/*":
			form, greatest = FormStream, weight
		case fiber.MIMEApplicationJSON, "application/*":
			form, greatest = FormPage, weight
		}
	}
	return form
}
