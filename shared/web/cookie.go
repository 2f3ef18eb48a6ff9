package web

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/daemon"
)

// The names of the cookie that holds a token. A browser takes a name that begins with
// __Host- only over TLS, and only from the host itself, so that no neighbour under the
// same domain can plant a cookie of its own. On the loopback interface there is no TLS.
const (
	cookieSecure   = "__Host-rejoin"
	cookieLoopback = "rejoin"
)

// maxCookieAge is how long browsers keep a cookie at most (RFC 6265bis, section 5.5).
const maxCookieAge = 400 * 24 * time.Hour

// maxCookieBytes is the most that browsers keep of a cookie's name and value together; they silently drop a larger
// one (RFC 6265bis, section 5.6).
const maxCookieBytes = 4096

// SameSite selects the requests of other sites' pages with which a browser sends the cookie.
type SameSite string

// The values of SameSite.
const (
	SameSiteStrict SameSite = "strict"
	SameSiteLax    SameSite = "lax"
	SameSiteNone   SameSite = "none" // with all; implies Secure and Partitioned
)

// SetCookie has the browser keep the bearer token of the request's Authorization header
// in a cookie that no script can read, until the token expires. It is Secure unless the
// request's host is the loopback interface. Errors are those of [Access.Authenticate], and 400
// invalid_header for a token that no browser would keep; a cookie does not renew itself.
func (a *Access) SetCookie(c *fiber.Ctx, sameSite SameSite) error {
	token, ofCookie, err := credentials(c)
	if err == nil && ofCookie {
		_, err = a.verify(c, "")
		return err
	}
	grants, err := a.Authenticate(c) // which has the error of credentials
	if err != nil {
		return err
	}
	if room := maxCookieBytes - len(cookieName(c)); len(token) > room {
		return a.refuse(refusedHeader, New(CodeInvalidHeader, fmt.Sprintf("The token has %d bytes, and browsers keep a cookie with up to %d; get a token with fewer claims.", len(token), room)))
	}
	age := min(time.Until(grants.Expires), maxCookieAge)
	// No age would mean that it ends with the browser.
	return sendCookie(c, sameSite, token, max(int(age/time.Second), 1))
}

// DeleteCookie has the browser forget the cookie that [Access.SetCookie] set with the same
// sameSite. It does so with any value of the cookie, and without a cookie. Errors are a
// [*Problem]: 403 origin_not_allowed unless the request has an Authorization header, or
// comes from a page of a listed origin, or has neither a cookie nor an origin; 400
// invalid_header for more than one Authorization header.
func (a *Access) DeleteCookie(c *fiber.Ctx, sameSite SameSite) error {
	_, ofCookie, err := credentials(c)
	if err != nil {
		return a.refuse(refusedHeader, err)
	}
	tokenGiven := len(c.Request().Header.Peek(fiber.HeaderAuthorization)) > 0
	fromPage := ofCookie || len(c.Request().Header.Peek(fiber.HeaderOrigin)) > 0
	if !tokenGiven && fromPage && !a.listed(c) {
		return a.refuse(refusedOrigin, notListed())
	}
	return sendCookie(c, sameSite, "", -1)
}

// sendCookie answers with a cookie; a negative age deletes it.
func sendCookie(c *fiber.Ctx, sameSite SameSite, token string, age int) error {
	cookie := http.Cookie{
		Name: cookieName(c), Value: token, Path: "/", HttpOnly: true, MaxAge: age,
		Secure:   !onLoopback(c) || sameSite == SameSiteNone,
		SameSite: http.SameSiteLaxMode,
	}
	switch sameSite {
	case SameSiteNone:
		cookie.SameSite, cookie.Partitioned = http.SameSiteNoneMode, true
	case SameSiteStrict:
		cookie.SameSite = http.SameSiteStrictMode
	case SameSiteLax:
	}
	c.Set(fiber.HeaderSetCookie, cookie.String())
	c.Set(fiber.HeaderCacheControl, "no-store")
	return c.SendStatus(fiber.StatusNoContent)
}

func cookieName(c *fiber.Ctx) string {
	if onLoopback(c) {
		return cookieLoopback
	}
	return cookieSecure
}

// onLoopback reports whether a request names the loopback interface as its host. That decides
// the cookie's name and whether it is Secure, so a proxy must pass Host on.
func onLoopback(c *fiber.Ctx) bool {
	return slices.Contains(loopbackHosts, daemon.Hostname(string(c.Request().Header.Host())))
}
