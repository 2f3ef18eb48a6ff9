package web

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// Route is a method of a resource.
type Route struct {
	// Method is GET, POST, PUT, PATCH or DELETE.
	Method string

	// Path is Fiber's pattern of a path, such as
	// "/v1/sessions/:session/streams/:stream/events". Read its parameters
	// with [Param].
	Path string

	// Handler answers the requests. An error that it returns becomes a
	// problem document. It finds the request's body in [StreamedBody]; the
	// part that it does not read is not kept in memory.
	Handler fiber.Handler

	// Query names the parameters that a request for a Path under /v1/ may have: with another
	// one, which may be misspelt, it is answered 400 invalid_parameter.
	Query []string

	// NoHead says that a GET has no HEAD beside it: for event streams, which
	// have no end.
	NoHead bool
}

// Mount adds routes to app. Routes of several services may share a path, as
// long as their methods differ; 405 and Allow consider all mounted routes.
// A GET also serves HEAD, unless it is NoHead. Mount panics when a route is
// mounted twice or its method is not one that a Route may have. It
// must not be called once app serves.
func Mount(app *fiber.App, routes ...Route) {
	mounted := make(map[string]bool)
	for _, r := range app.GetRoutes(true) {
		mounted[r.Method+" "+r.Path] = true
	}
	for _, r := range routes {
		switch r.Method {
		case fiber.MethodGet, fiber.MethodPost, fiber.MethodPut, fiber.MethodPatch, fiber.MethodDelete:
		default:
			panic(fmt.Sprintf("web: route %s %s: a route cannot have this method", r.Method, r.Path))
		}
		key := r.Method + " " + r.Path
		if mounted[key] {
			panic(fmt.Sprintf("web: route %s is mounted twice", key))
		}
		mounted[key] = true
		handler := checkLength(r.Handler)
		if strings.HasPrefix(r.Path, "/v1/") {
			handler = knownQuery(r.Query, handler)
		}
		app.Add(r.Method, r.Path, handler)
		if r.Method == fiber.MethodGet && !r.NoHead {
			app.Add(fiber.MethodHead, r.Path, handler)
		}
	}
}

// knownQuery returns a handler that calls h for requests whose parameters all have one of these
// names. A token in the URL has a problem of its own; see [Access.Authenticate].
func knownQuery(names []string, h fiber.Handler) fiber.Handler {
	return func(c *fiber.Ctx) error {
		var unknown error
		c.Context().QueryArgs().VisitAll(func(key, _ []byte) {
			if name := string(key); !slices.Contains(names, name) && !slices.Contains(tokenParameters, name) {
				unknown = unknownParameter(name, names)
			}
		})
		if unknown != nil {
			return unknown
		}
		return h(c)
	}
}

func unknownParameter(name string, names []string) error {
	has := "has no parameters."
	if len(names) > 0 {
		has = "has the parameters " + strings.Join(names, ", ") + "."
	}
	return New(CodeInvalidParameter, fmt.Sprintf("There is no parameter %.64q here. This resource %s", name, has))
}

// Param returns the path parameter name, percent-decoded exactly once: a
// name such as "a/b" or ".." arrives as it was before the client encoded it,
// and "+" stays "+". It does not check whether the name is valid. The string
// is a copy and may be kept. When the encoding is broken, the error is a
// [*Problem] with the code invalid_name.
//
// This works because no earlier code decodes or cleans the path: routes are
// matched against the path exactly as it was sent. So "%2F" never separates
// segments, "." and ".." are segments like any other, "//" contains an empty
// segment that no parameter matches, and no encoding of a name can lead to
// another route. A slash at the end of a path makes no difference.
func Param(c *fiber.Ctx, name string) (string, error) {
	raw := c.Params(name)
	value, err := url.PathUnescape(raw)
	if err != nil {
		return "", Wrap(err, CodeInvalidName, "The percent-encoding of the path is broken.")
	}
	return strings.Clone(value), nil // raw points into the request's buffer
}

// Query returns a query parameter and whether it is given; given without a value,
// it is empty. The string is a copy and may be kept. When it is given more than
// once, readers may disagree about which one counts, and the error is a [*Problem]
// with the code invalid_parameter.
func Query(c *fiber.Ctx, name string) (value string, given bool, err error) {
	values := c.Context().QueryArgs().PeekMulti(name)
	switch len(values) {
	case 0:
		return "", false, nil
	case 1:
		return string(values[0]), true, nil
	default:
		return "", true, New(CodeInvalidParameter, "The parameter \""+name+"\" is given more than once.")
	}
}

// Queries returns all values of a query parameter that may be given more than once, in
// their order. The strings are copies and may be kept.
func Queries(c *fiber.Ctx, name string) []string {
	var values []string
	for _, value := range c.Context().QueryArgs().PeekMulti(name) {
		values = append(values, string(value))
	}
	return values
}

// Choice returns a query parameter that has one of two values, as whether it is the
// first one; def is the result when it is not given. Errors are those of [Query], and a
// [*Problem] with the code invalid_parameter.
func Choice(c *fiber.Ctx, name, yes, no string, def bool) (bool, error) {
	value, given, err := Query(c, name)
	switch {
	case err != nil || !given:
		return def, err
	case value == yes || value == no:
		return value == yes, nil
	default:
		return false, New(CodeInvalidParameter, fmt.Sprintf("The parameter %q is %q or %q.", name, yes, no))
	}
}

// Number returns a query parameter that is a whole number from lo to hi; def is the
// result when it is not given. Errors are those of [Choice].
func Number(c *fiber.Ctx, name string, def, lo, hi int) (int, error) {
	text, given, err := Query(c, name)
	if err != nil || !given {
		return def, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < lo || n > hi {
		return 0, New(CodeInvalidParameter, fmt.Sprintf("The parameter %q is a whole number from %d to %d.", name, lo, hi))
	}
	return n, nil
}
