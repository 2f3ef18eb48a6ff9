package web

import (
	"bytes"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// headerFetchSite is the header in which a browser reports how the page that sends a request
// relates to the request's URL (Fetch Metadata Request Headers, section 2.3).
const headerFetchSite = "Sec-Fetch-Site"

// originsKey is the key under which originCheck keeps the further origins of a service.
type originsKey struct{}

// Protect installs the middleware before all routes of a service, in this order: hostCheck for
// hosts, the values of flag, cors, originCheck for origins. It must be called before [Mount].
func (a *Access) Protect(app *fiber.App, flag string, hosts []string, origins ...string) {
	app.Use(a.hostCheck(flag, hosts), a.cors(), a.originCheck(origins...))
}

// originCheck returns a middleware that answers 403 origin_not_allowed to a request that may
// make a change and that [Access.CrossOrigin] reports: a page can have a browser send a POST
// of plain text to any address, and needs no permission for it. origins are the service's own
// besides the one that the request names; empty ones do not count.
//
// With access control a request with a bearer token in the Authorization header passes. A page
// of another origin cannot send one: its browser asks first, and only listed origins are
// answered (Fetch standard, section 4.8). Other authentication schemes do not count, since a
// browser sends a name and a password that a link holds without asking.
func (a *Access) originCheck(origins ...string) fiber.Handler {
	origins = slices.DeleteFunc(slices.Clone(origins), func(origin string) bool { return origin == "" })
	return func(c *fiber.Ctx) error {
		c.Locals(originsKey{}, origins)
		if !writes(c) || !a.CrossOrigin(c) || a.On() && hasBearer(c) {
			return c.Next()
		}
		err := New(CodeOriginNotAllowed, "A page of another origin may change something only if its origin is on the list of --cors-origins.")
		if a == nil {
			return err
		}
		return a.refuse(refusedOrigin, err)
	}
}

// CrossOrigin reports whether a request comes from a page of an origin that is neither the
// service's own nor listed. Requests of other programs are of no page.
//
// Sec-Fetch-Site decides where it is given: no page can set it, and a browser sets "same-origin"
// by its own address bar, even when the proxies in front change Host and the scheme. Browsers
// send it to https and to this machine only. Otherwise Origin must be the request's own: the
// scheme of X-Forwarded-Proto, which no page can send without a preflight either, or
// else http; and the Host header. A request without both headers is of no page.
func (a *Access) CrossOrigin(c *fiber.Ctx) bool {
	h := &c.Request().Header
	given := h.PeekAll(fiber.HeaderOrigin)
	pages := len(given)
	var origin string
	if pages == 1 {
		origin = string(bytes.TrimSpace(given[0]))
		own, _ := c.Locals(originsKey{}).([]string)
		if a != nil && a.origins[origin] || slices.Contains(own, origin) {
			return false
		}
	}
	site := h.PeekAll(headerFetchSite) // which overwrites the values of given
	switch {
	case pages > 1 || len(site) > 1:
		return true
	case len(site) == 1:
		value := string(site[0])
		return value != "same-origin" && value != "none"
	default:
		return pages == 1 && origin != ownOrigin(c)
	}
}

// ownOrigin returns the origin that a request was sent to, as a browser writes it: in lower
// case, without the scheme's own port.
func ownOrigin(c *fiber.Ctx) string {
	scheme, port := "http", ":80"
	first, _, _ := strings.Cut(c.Get(fiber.HeaderXForwardedProto), ",")
	if strings.EqualFold(strings.TrimSpace(first), "https") {
		scheme, port = "https", ":443"
	}
	return scheme + "://" + strings.TrimSuffix(strings.ToLower(string(c.Request().Header.Host())), port)
}

// hasBearer reports whether a request has a bearer token in its only Authorization header.
func hasBearer(c *fiber.Ctx) bool {
	given := c.Request().Header.PeekAll(fiber.HeaderAuthorization)
	return len(given) == 1 && bearer(string(given[0])) != ""
}
