package auth

import (
	"slices"
	"time"
)

// Grants are the permissions of a token. The zero value allows nothing. A value is not
// changed after it was made, and then safe for concurrent use.
type Grants struct {
	// Subject is the token's subject, which owns the sessions that it creates. It is never
	// empty in the grants of a token.
	Subject string

	// Owners are the subjects, besides Subject, to whose sessions Publish and Subscribe
	// apply as well. Default: none.
	Owners []Pattern

	// Publish are the sessions that may be created, published to, closed and cleared,
	// as far as their owner is Subject or one of Owners.
	Publish []Pattern

	// Subscribe are the sessions that may be read, as far as their owner is Subject or
	// one of Owners.
	Subscribe []Pattern

	// Admin allows all requests to the janitor, about all sessions of all owners. It
	// allows neither to publish nor to subscribe.
	Admin bool

	// Expires is the moment from which on the token is refused: its "exp" and the
	// leeway. Zero means never, which no token has.
	Expires time.Time
}

// Everything returns the grants that all clients have when there is no access control.
func Everything() Grants {
	return Grants{Publish: []Pattern{All}, Subscribe: []Pattern{All}, Admin: true}
}

// MayPublish reports whether a session of this name may be created, published to,
// closed and cleared.
func (g Grants) MayPublish(session string) bool { return matches(g.Publish, session) }

// MaySubscribe reports whether a session of this name may be read.
func (g Grants) MaySubscribe(session string) bool { return matches(g.Subscribe, session) }

// MaySubscribeAll reports whether all sessions may be read whose names match a pattern.
func (g Grants) MaySubscribeAll(p Pattern) bool {
	return slices.ContainsFunc(g.Subscribe, func(of Pattern) bool { return of.covers(p) })
}

// ActsFor reports whether the sessions of an owner may be used as the subject's own. A
// session without an owner belongs to no subject: for an empty owner it returns false.
func (g Grants) ActsFor(owner string) bool {
	return owner != "" && (owner == g.Subject || matches(g.Owners, owner))
}

// Uses reports whether the subject may use a session: by [Grants.ActsFor], or
// because one of its members, which are patterns of subjects, matches Subject. A session
// without an owner has no members.
func (g Grants) Uses(owner string, members []string) bool {
	return g.ActsFor(owner) || owner != "" && slices.ContainsFunc(members, func(m string) bool { return Pattern(m).Match(g.Subject) })
}

func matches(patterns []Pattern, name string) bool {
	return slices.ContainsFunc(patterns, func(p Pattern) bool { return p.Match(name) })
}
