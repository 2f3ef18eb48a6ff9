package auth

import (
	"fmt"
	"strings"

	"rejoin/shared/event"
)

// Pattern matches names of sessions, or subjects of tokens: a name matches itself; a beginning and "*" match
// all names that begin so; "*" alone matches all. An asterisk anywhere but at the end is an
// asterisk. So a name that ends in "*" cannot be matched alone: "a**" matches "a*" and
// all names that begin with it.
type Pattern string

// All is the pattern of all sessions and of all subjects.
const All Pattern = "*"

// Check reports whether p can match the name of a session. The error wraps [ErrPattern].
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

// CheckSubject reports whether p can match the subject of a token. The error wraps
// [ErrPattern].
func (p Pattern) CheckSubject() error {
	if p == All {
		return nil
	}
	if err := CheckSubject(strings.TrimSuffix(string(p), "*")); err != nil {
		return fmt.Errorf("%w: %q: %w", ErrPattern, string(p), err)
	}
	return nil
}

// CheckSubject reports whether a token may have this subject, and a session this owner.
func CheckSubject(subject string) error {
	if subject == "" || len(subject) > maxSubjectLen {
		return fmt.Errorf("not a subject: it must have 1 to %d bytes, and has %d", maxSubjectLen, len(subject))
	}
	return nil
}

// covers reports whether p matches all names that another pattern matches.
func (p Pattern) covers(other Pattern) bool {
	if !strings.HasSuffix(string(p), "*") {
		return p == other
	}
	return p.Match(strings.TrimSuffix(string(other), "*"))
}

// Match reports whether p matches a name. Names are compared byte by byte.
func (p Pattern) Match(name string) bool {
	if beginning, open := strings.CutSuffix(string(p), "*"); open {
		return strings.HasPrefix(name, beginning)
	}
	return name == string(p)
}
