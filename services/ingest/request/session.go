package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"

	"rejoin/shared/auth"
	"rejoin/shared/event"
	"rejoin/shared/session"
	"rejoin/shared/web"
)

const (
	// MaxMetadata is the largest metadata of a session, in bytes as sent.
	MaxMetadata = 16 << 10
	// MaxMembers is how many members a session may have.
	MaxMembers = 100

	// maxBody is the largest body of a request about a session.
	maxBody = 64 << 10
)

// Session is the body of POST /v1/sessions.
type Session struct {
	Name     string          // empty: choose one
	Owner    string          // empty: the token's subject
	Members  []string        // sorted; nil: none
	Metadata json.RawMessage // nil: none
}

// ReadSession reads the body of POST /v1/sessions. No body at all is the same as {}.
func ReadSession(c *fiber.Ctx) (Session, error) {
	if web.StreamedBody(c).Empty() && c.Get(fiber.HeaderContentType) == "" {
		return Session{}, nil
	}
	body, err := jsonBody(c)
	if err != nil || len(body) == 0 {
		return Session{}, err
	}
	return ParseSession(body)
}

// ParseSession reads a body. Member names are taken literally and once, which
// encoding/json does not do with a struct. The result holds no part of body.
func ParseSession(body []byte) (req Session, err error) {
	bad := func(detail string) error { return web.New(web.CodeInvalidBody, detail) }
	if !utf8.Valid(body) || !json.Valid(body) {
		return Session{}, web.New(web.CodeInvalidJSON, "")
	}
	if bytes.TrimSpace(body)[0] != '{' {
		return Session{}, bad("The body must be an object.")
	}
	seen := map[string]bool{}
	for name, value := range event.Members(body) {
		var member string
		if _ = json.Unmarshal(name, &member); seen[member] { // it is valid
			return Session{}, bad("The body has a member twice.")
		}
		seen[member] = true
		switch member {
		case "session":
			if !readString(value, &req.Name) {
				return Session{}, bad("session must be a string.")
			}
			if err := event.CheckSession(req.Name); err != nil {
				return Session{}, fmt.Errorf("session: %w", err)
			}
		case "owner":
			if !readString(value, &req.Owner) {
				return Session{}, bad("owner must be a string.")
			}
			if err := auth.CheckSubject(req.Owner); err != nil {
				return Session{}, bad("owner: " + err.Error() + ".")
			}
		case "members":
			if req.Members, err = parseMembers(value); err != nil {
				return Session{}, err
			}
		case "metadata":
			if value[0] != '{' {
				return Session{}, bad("metadata must be an object.")
			}
			if len(value) > MaxMetadata {
				return Session{}, web.New(web.CodeBodyTooLarge, "metadata may have up to 16 KiB.")
			}
			if _, err := session.ParseRetention(value); err != nil {
				return Session{}, err
			}
			if _, err := session.ParseMessages(value); err != nil {
				return Session{}, err
			}
			if ofBridge(value) {
				return Session{}, bad("The member mcp of metadata belongs to bridges.")
			}
			req.Metadata = bytes.Clone(value)
		default:
			return Session{}, bad("The body may have the members session, owner, members and metadata, and no others.")
		}
	}
	return req, nil
}

// ofBridge reports whether metadata, an object, has the member by which a bridge knows the
// sessions that are its own, in any case, since the bridge ignores that.
func ofBridge(metadata json.RawMessage) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(metadata, &members) != nil {
		return true
	}
	for name := range members {
		if strings.EqualFold(name, "mcp") {
			return true
		}
	}
	return false
}

// ReadMembers reads the body of PUT /v1/sessions/{session}/members.
func ReadMembers(c *fiber.Ctx) ([]string, error) {
	body, err := jsonBody(c)
	if err != nil {
		return nil, err
	}
	req, err := ParseSession(body)
	if err != nil {
		return nil, err
	}
	if req.Members == nil || req.Name != "" || req.Owner != "" || req.Metadata != nil {
		return nil, web.New(web.CodeInvalidBody, "The body must have the member members, and no others.")
	}
	return req.Members, nil
}

// parseMembers reads a list of subjects and patterns of subjects, and returns it sorted, each of
// them once, and never nil.
func parseMembers(value json.RawMessage) ([]string, error) {
	var members []*string
	if err := json.Unmarshal(value, &members); err != nil || value[0] != '[' || slices.Contains(members, nil) {
		return nil, web.New(web.CodeInvalidBody, "members must be an array of strings.")
	}
	all := make([]string, 0, min(len(members), MaxMembers+1))
	for _, m := range members {
		if err := auth.Pattern(*m).CheckSubject(); err != nil {
			return nil, web.New(web.CodeInvalidBody, "members: "+err.Error()+".")
		}
		all = append(all, *m)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > MaxMembers {
		return nil, web.New(web.CodeInvalidBody, fmt.Sprintf("A session may have up to %d members.", MaxMembers))
	}
	return all, nil
}

// jsonBody returns the body, of up to maxBody bytes, of a request. It refuses a body whose headers declare
// anything but uncompressed JSON in UTF-8.
func jsonBody(c *fiber.Ctx) ([]byte, error) {
	media, err := BodyType(c)
	if err == nil && !media.One() || errors.Is(err, errUnknownType) {
		err = web.New(web.CodeUnsupportedMediaType, "The Content-Type must be application/json.")
	}
	if err != nil {
		return nil, err
	}
	return web.StreamedBody(c).Limited(maxBody)
}
