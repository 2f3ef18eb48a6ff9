package ingest

import (
	"mime"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/event"
	"rejoin/shared/web"
)

const (
	headerKey  = "Idempotency-Key"
	headerType = "Event-Type"
)

// values returns all values of a header of a request.
func values(c *fiber.Ctx, name string) (all []string) {
	for _, v := range c.Request().Header.PeekAll(name) {
		all = append(all, string(v))
	}
	return all
}

// single returns the value of a header that may be given once.
func single(name string, values []string) (value string, given bool, err error) {
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	default:
		return "", true, web.New(web.CodeInvalidHeader, name+" is given more than once.")
	}
}

// keyOf returns the idempotency key of a request: 1 to 256 visible ASCII characters or
// spaces, or empty when none is given.
func keyOf(values []string) (string, error) {
	key, given, err := single(headerKey, values)
	if err != nil || !given {
		return "", err
	}
	if !event.ValidKey(key) {
		return "", web.New(web.CodeInvalidHeader, "Idempotency-Key must be "+keyRule)
	}
	return key, nil
}

const keyRule = "1 to 256 visible ASCII characters or spaces."

// typeOf returns the SSE event type of a request, or empty when none is given.
// Whether it may be used is the message's own check.
func typeOf(values []string) (string, error) {
	t, given, err := single(headerType, values)
	if err == nil && given && t == "" {
		err = web.New(web.CodeInvalidHeader, "Event-Type is empty.")
	}
	return t, err
}

// mediaType is what a body is, as far as ingest tells bodies apart: one message, or many.
type mediaType struct {
	array, lines bool // neither: one message
	envelopes    bool // of many, each is in an envelope
}

func (m mediaType) one() bool { return !m.array && !m.lines }

// The media types of many messages.
const (
	mimeNDJSON       = "application/x-ndjson" // a JSON text on each line
	mimeMessages     = "application/vnd.rejoin.messages+json"
	mimeEnvelopes    = "application/vnd.rejoin.envelopes+json"
	mimeEnvelopeEach = "application/vnd.rejoin.envelopes+ndjson"
)

var mediaTypes = map[string]mediaType{
	fiber.MIMEApplicationJSON: {},
	mimeNDJSON:                {lines: true},
	"application/ndjson":      {lines: true},
	"application/jsonl":       {lines: true},
	"application/x-jsonlines": {lines: true},
	mimeMessages:              {array: true},
	mimeEnvelopes:             {array: true, envelopes: true},
	mimeEnvelopeEach:          {lines: true, envelopes: true},
}

// bodyType returns what the body of a request is, which is never decompressed.
func bodyType(c *fiber.Ctx) (mediaType, error) {
	media, err := mediaOf(c.Get(fiber.HeaderContentType))
	if encoding := c.Get(fiber.HeaderContentEncoding); err == nil && encoding != "" && !strings.EqualFold(encoding, "identity") {
		return mediaType{}, web.New(web.CodeUnsupportedMediaType, "The body must not be compressed.")
	}
	return media, err
}

func mediaOf(declared string) (mediaType, error) {
	media, known := mediaTypes[declared]
	if known {
		return media, nil
	}
	kind, params, err := mime.ParseMediaType(declared) // it is written in another way
	if media, known = mediaTypes[kind]; err != nil || !known {
		return mediaType{}, web.New(web.CodeUnsupportedMediaType, "The Content-Type must be application/json for one message, "+mimeNDJSON+" or "+mimeMessages+" for many, or "+mimeEnvelopeEach+" or "+mimeEnvelopes+" for many in envelopes.")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return mediaType{}, web.New(web.CodeUnsupportedMediaType, "JSON is always UTF-8.")
	}
	return media, nil
}

// jsonBody returns the body, of up to limit bytes, of a request that must be JSON: what is not
// JSON in UTF-8 as it stands is refused.
func jsonBody(c *fiber.Ctx, limit int) ([]byte, error) {
	media, err := bodyType(c)
	if err == nil && !media.one() {
		err = web.New(web.CodeUnsupportedMediaType, "The Content-Type must be application/json.")
	}
	if err != nil {
		return nil, err
	}
	return web.StreamedBody(c).Limited(limit)
}
