// Package request reads the requests of publishers: the headers and bodies of one message or many, and the
// bodies of requests about sessions.
package request

import (
	"errors"
	"mime"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/event"
	"rejoin/shared/web"
)

// The headers of a publish.
const (
	HeaderKey  = "Idempotency-Key"
	HeaderType = "Event-Type"
)

// Values returns all values of a header of a request.
func Values(c *fiber.Ctx, name string) (all []string) {
	for _, v := range c.Request().Header.PeekAll(name) {
		all = append(all, string(v))
	}
	return all
}

// Single returns the value of a header that may be given once.
func Single(name string, values []string) (value string, given bool, err error) {
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	default:
		return "", true, web.New(web.CodeInvalidHeader, name+" is given more than once.")
	}
}

// Key returns the idempotency key of a request: 1 to 256 visible ASCII characters or
// spaces, or empty when none is given.
func Key(values []string) (string, error) {
	key, given, err := Single(HeaderKey, values)
	if err != nil || !given {
		return "", err
	}
	if !event.ValidKey(key) {
		return "", web.New(web.CodeInvalidHeader, "Idempotency-Key must be "+keyRule)
	}
	return key, nil
}

const keyRule = "1 to 256 visible ASCII characters or spaces."

// Type returns the SSE event type of a request, or empty when none is given.
// Whether it may be used is the message's own check.
func Type(values []string) (string, error) {
	t, given, err := Single(HeaderType, values)
	if err == nil && given && t == "" {
		err = web.New(web.CodeInvalidHeader, "Event-Type is empty.")
	}
	return t, err
}

// MediaType is the kind of a body, as far as ingest tells bodies apart: one message, or many.
type MediaType struct {
	Array, Lines bool // neither: one message
	Envelopes    bool // of many, each is in an envelope
}

// One reports whether the body is one message.
func (m MediaType) One() bool { return !m.Array && !m.Lines }

// The media types of many messages.
const (
	MIMELines        = "application/x-ndjson" // a JSON text on each line
	MIMEMessages     = "application/vnd.rejoin.messages+json"
	MIMEEnvelopes    = "application/vnd.rejoin.envelopes+json"
	mimeEnvelopeEach = "application/vnd.rejoin.envelopes+ndjson"
)

var mediaTypes = map[string]MediaType{
	fiber.MIMEApplicationJSON: {},
	MIMELines:                 {Lines: true},
	"application/ndjson":      {Lines: true},
	"application/jsonl":       {Lines: true},
	"application/x-jsonlines": {Lines: true},
	MIMEMessages:              {Array: true},
	MIMEEnvelopes:             {Array: true, Envelopes: true},
	mimeEnvelopeEach:          {Lines: true, Envelopes: true},
}

// errUnknownType is the cause of a problem about a media type that no resource takes.
var errUnknownType = errors.New("unknown media type")

// BodyType returns the kind of a request's body, which is never decompressed.
func BodyType(c *fiber.Ctx) (MediaType, error) {
	media, err := MediaOf(c.Get(fiber.HeaderContentType))
	if encoding := c.Get(fiber.HeaderContentEncoding); err == nil && encoding != "" && !strings.EqualFold(encoding, "identity") {
		return MediaType{}, web.New(web.CodeUnsupportedMediaType, "The body must not be compressed.")
	}
	return media, err
}

// MediaOf returns the kind of a body with a declared Content-Type.
func MediaOf(declared string) (MediaType, error) {
	media, known := mediaTypes[declared]
	if known {
		return media, nil
	}
	kind, params, err := mime.ParseMediaType(declared) // it is written in another way
	if media, known = mediaTypes[kind]; err != nil || !known {
		return MediaType{}, web.Wrap(errUnknownType, web.CodeUnsupportedMediaType, "The Content-Type must be application/json for one message, "+MIMELines+" or "+MIMEMessages+" for many, or "+mimeEnvelopeEach+" or "+MIMEEnvelopes+" for many in envelopes.")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return MediaType{}, web.New(web.CodeUnsupportedMediaType, "JSON is always UTF-8.")
	}
	return media, nil
}
