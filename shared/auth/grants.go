package auth

import (
	"slices"
	"time"
)

// Grants are what a token allows. The zero value allows nothing. A value is not
// changed after it was made, and then safe for concurrent use.
type Grants struct {
	// Subject is who asks: the owner of the sessions that they create. It is never
	// empty in the grants of a token.
	Subject string

	// Publish are the sessions that may be created, published to, closed and cleared,
	// as far as the subject owns them.
	Publish []Pattern

	// Subscribe are the sessions that may be read, as far as the subject owns them.
	Subscribe []Pattern

	// Admin allows what the janitor answers, about all sessions of all owners. It
	// allows neither to publish nor to subscribe.
	Admin bool

	// Expires is the moment from which on the token is refused: its "exp" and the
	// leeway. Zero means never, which no token says.
	Expires time.Time
}

// Everything returns the grants of everybody where there is no access control.
func Everything() Grants {
	return Grants{Publish: []Pattern{All}, Subscribe: []Pattern{All}, Admin: true}
}

// MayPublish reports whether a session of this name may be created, published to,
// closed and cleared.
func (g Grants) MayPublish(session string) bool { return matches(g.Publish, session) }

// MaySubscribe reports whether a session of this name may be read.
func (g Grants) MaySubscribe(session string) bool { return matches(g.Subscribe, session) }

func matches(patterns []Pattern, session string) bool {
	return slices.ContainsFunc(patterns, func(p Pattern) bool { return p.Match(session) })
}
