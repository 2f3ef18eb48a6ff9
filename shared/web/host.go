package web

import (
	"fmt"
	"slices"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/daemon"
)

// loopbackHosts are the names under which a machine reaches itself: the
// hosts that hostCheck always allows.
var loopbackHosts = []string{"localhost", "127.0.0.1", "::1"}

// hostCheck returns a middleware that answers 403 host_not_allowed unless
// the request's host, without its port, is one of loopbackHosts or of hosts, the values of flag.
// It protects against DNS rebinding: a web page whose own name was made to resolve to this
// machine sends that name. Case, a final dot, and the brackets of IPv6
// addresses make no difference. A refusal names the flag, which adds hosts. With access control such
// a page gains nothing, since it has neither a token nor the cookie: then all hosts pass unless
// hosts are given.
func (a *Access) hostCheck(flag string, hosts []string) fiber.Handler {
	if a.On() && len(hosts) == 0 {
		return func(c *fiber.Ctx) error { return c.Next() }
	}
	allowed := map[string]bool{}
	for _, h := range slices.Concat(loopbackHosts, hosts) {
		allowed[daemon.Hostname(h)] = true
	}
	return func(c *fiber.Ctx) error {
		// A target that is an absolute URI has a host of its own, which
		// counts instead of the header (RFC 9112, section 3.2.2). Ask for
		// both: no honest client sends two different ones.
		header, target := c.Request().Header.Host(), c.Request().URI().Host()
		for _, host := range [...][]byte{header, target} {
			if name := daemon.Hostname(string(host)); !allowed[name] {
				return New(CodeHostNotAllowed, fmt.Sprintf("The host %.100q is not on this server's list; %s adds it.", name, flag))
			}
		}
		return c.Next()
	}
}
