package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Token has the content of a token with a shared secret. In production another program issues
// tokens, with a key of its own.
type Token struct {
	Subject  string // required
	Audience string // required
	Issuer   string // empty: none

	Publish   []Pattern
	Subscribe []Pattern
	Owners    []Pattern
	Admin     bool

	// Issued and Expires are rounded down to seconds.
	Issued, Expires time.Time
}

// Sign returns the token, signed with HS256. Errors wrap [ErrClaims] when no verifier
// would take it.
func (t Token) Sign(secret []byte) (string, error) {
	switch {
	case t.Audience == "":
		return "", fmt.Errorf("%w: there is no audience", ErrClaims)
	case !t.Expires.After(t.Issued):
		return "", fmt.Errorf("%w: it expires before it is issued", ErrClaims)
	}
	grants := grantClaims{Publish: t.Publish, Subscribe: t.Subscribe, Owners: t.Owners, Admin: t.Admin}
	if err := errors.Join(CheckSubject(t.Subject), grants.check()); err != nil {
		return "", fmt.Errorf("%w: %w", ErrClaims, err)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, &claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Subject: t.Subject, Audience: jwt.ClaimStrings{t.Audience}, Issuer: t.Issuer,
			IssuedAt: jwt.NewNumericDate(t.Issued), ExpiresAt: jwt.NewNumericDate(t.Expires),
		},
		Rejoin: grants,
	}).SignedString(secret)
	if len(token) > maxTokenLen {
		return "", fmt.Errorf("%w: the token has %d bytes, of at most %d bytes; prefixes followed by * are shorter", ErrClaims, len(token), maxTokenLen)
	}
	return token, err
}
