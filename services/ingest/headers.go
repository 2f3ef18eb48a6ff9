package ingest

import (
	"mime"
	"strings"

	"github.com/gofiber/fiber/v2"

	"rejoin/services/web"
)

const (
	headerKey   = "Idempotency-Key"
	headerType  = "Event-Type"
	headerTrace = "traceparent"
)

// maxKeyLen is the longest idempotency key, in bytes.
const maxKeyLen = 256

// header returns the value of a header that may be given once. The string is a copy.
func header(c *fiber.Ctx, name string) (value string, given bool, err error) {
	values := c.Request().Header.PeekAll(name)
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		return string(values[0]), true, nil
	default:
		return "", true, web.New(web.CodeInvalidHeader, name+" is given more than once.")
	}
}

// idempotencyKey returns the request's key: 1 to 256 visible ASCII characters or
// spaces, or empty when none is given.
func idempotencyKey(c *fiber.Ctx) (string, error) {
	key, given, err := header(c, headerKey)
	if err != nil || !given {
		return "", err
	}
	outside := func(r rune) bool { return r < 0x20 || r > 0x7e }
	if key == "" || len(key) > maxKeyLen || strings.ContainsFunc(key, outside) {
		return "", web.New(web.CodeInvalidHeader, "Idempotency-Key must be 1 to 256 visible ASCII characters or spaces.")
	}
	return key, nil
}

// eventType returns the request's SSE event type, or empty when none is given.
// Whether it may be used is the message's own check.
func eventType(c *fiber.Ctx) (string, error) {
	t, given, err := header(c, headerType)
	if err == nil && given && t == "" {
		err = web.New(web.CodeInvalidHeader, "Event-Type is empty.")
	}
	return t, err
}

// traceparent returns the request's trace context (W3C Trace Context, section
// 3.2), or empty when there is none that is well-formed, as the specification
// has it: a broken one is no reason to fail.
func traceparent(c *fiber.Ctx) string {
	t, _, err := header(c, headerTrace)
	if err != nil || !validTraceparent(t) {
		return ""
	}
	return t
}

// validTraceparent accepts version-traceid-parentid-flags in lower-case
// hexadecimal. Of later versions it accepts only what looks the same.
func validTraceparent(t string) bool {
	parts := strings.Split(t, "-")
	if len(parts) != 4 || parts[0] == "ff" {
		return false
	}
	for i, n := range []int{2, 32, 16, 2} {
		if len(parts[i]) != n || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(parts[1], "0") != "" && strings.Trim(parts[2], "0") != ""
}

// jsonBody returns the body of a request that must be JSON. It is valid only
// while the request is being answered, and is never decompressed: what is not
// JSON in UTF-8 as it stands is refused.
func jsonBody(c *fiber.Ctx) ([]byte, error) {
	unsupported := func(detail string) ([]byte, error) { return nil, web.New(web.CodeUnsupportedMediaType, detail) }
	kind, params, err := mime.ParseMediaType(c.Get(fiber.HeaderContentType))
	if err != nil || kind != fiber.MIMEApplicationJSON {
		return unsupported("The Content-Type must be application/json.")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return unsupported("JSON is always UTF-8.")
	}
	if encoding := c.Get(fiber.HeaderContentEncoding); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return unsupported("The body must not be compressed.")
	}
	return c.Request().Body(), nil
}
