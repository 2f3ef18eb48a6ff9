package auth

import (
	"fmt"
	"strings"

	"rejoin/shared/event"
)

// Pattern stands for the names of sessions: a name for itself; a beginning and "*" for
// all names that begin so; "*" alone for all. An asterisk anywhere but at the end is an
// asterisk. So a name that ends in "*" cannot be meant alone: "a**" stands for "a*" and
// all that begin with it.
type Pattern string

// All is the pattern of all sessions.
const All Pattern = "*"

// Check reports whether p can match anything. The error wraps [ErrPattern].
func (p Pattern) Check() error {
	name, open := strings.CutSuffix(string(p), "*")
	if p == All {
		return nil
	}
	if open {
		name += "x" // a name that p matches if it matches any
	}
	if err := event.CheckSession(name); err != nil {
		return fmt.Errorf("%w: %q: %w", ErrPattern, string(p), err)
	}
	return nil
}

// Match reports whether p stands for a session.
func (p Pattern) Match(session string) bool {
	if beginning, open := strings.CutSuffix(string(p), "*"); open {
		return strings.HasPrefix(session, beginning)
	}
	return session == string(p)
}
