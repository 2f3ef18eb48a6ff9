package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/golang-jwt/jwt/v5"

	"rejoin/shared/flagtype"
)

const (
	// Leeway is the allowed difference of the clocks of a token's issuer and of its
	// verifier, for "exp" and "nbf".
	Leeway = 10 * time.Second

	// maxTokenLen is the longest token, in bytes. The headers of a request have room
	// for less.
	maxTokenLen = 16 << 10

	// maxSubjectLen is the longest subject, in bytes: it is kept with each session.
	maxSubjectLen = 256
)

// finder finds the key that a token names as its signer's. algorithm is one of the
// verifier's. Errors are [ErrUnknownKey] and [ErrUnavailable].
type finder func(ctx context.Context, algorithm, id string) (key any, err error)

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	// algorithms follow from the kind of the key, never from a token: a public key's text is
	// no secret, so HS256 must not take it for one.
	algorithms []string
	find       finder
	parser     *jwt.Parser
	now        func() time.Time
	memory     memory
}

// NewVerifier makes the verifier of cfg, which must be valid and have access
// control on. It reads files, but fetches no key set yet: one that cannot be reached at
// the moment keeps no program from starting. Failed fetches of a key set are
// logged. Errors are one sentence for the user.
func NewVerifier(cfg Config, log *slog.Logger) (*Verifier, error) {
	return newVerifier(cfg, log, time.Now)
}

func newVerifier(cfg Config, log *slog.Logger, now func() time.Time) (*Verifier, error) {
	v := &Verifier{now: now, memory: newMemory()}
	switch {
	case cfg.SecretFile != "":
		secret, err := ReadSecret(cfg.SecretFile)
		if err != nil {
			return nil, &flagtype.FileError{Err: err}
		}
		v.algorithms, v.find = []string{algHS256}, one(secret)
	case cfg.KeyFile != "":
		key, algorithm, err := readPublicKey(cfg.KeyFile)
		if err != nil {
			return nil, &flagtype.FileError{Err: err}
		}
		v.algorithms, v.find = []string{algorithm}, one(key)
	default:
		// None of them takes a secret, so that no public key can be used as one.
		v.algorithms, v.find = []string{algRS256, algES256, algEdDSA}, newKeySet(cfg.JWKSURL, log, now).find
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(v.algorithms), jwt.WithAudience(cfg.Audience), jwt.WithExpirationRequired(),
		jwt.WithLeeway(Leeway), jwt.WithTimeFunc(now), jwt.WithStrictDecoding(),
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	v.parser = jwt.NewParser(options...)
	return v, nil
}

// Verify returns the grants of a token: the text after "Bearer " (RFC 6750, section
// 2.1). Errors wrap one of this package's. It waits only for a key set, for at most
// some seconds, and gives up when ctx ends. A token that was found good within the last
// minute is not checked again until it expires.
func (v *Verifier) Verify(ctx context.Context, token string) (Grants, error) {
	switch {
	case token == "":
		return Grants{}, ErrMissing
	case len(token) > maxTokenLen:
		return Grants{}, fmt.Errorf("%w: it has %d bytes", ErrMalformed, len(token))
	case strings.ContainsFunc(token, outside): // line breaks, which the decoder overlooks, too
		return Grants{}, fmt.Errorf("%w: it has a character that no token has", ErrMalformed)
	}
	if grants, ok := v.memory.recall(token, v.now()); ok {
		return grants, nil
	}
	var c claims
	parsed, err := v.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		if _, critical := t.Header["crit"]; critical { // RFC 7515, section 4.1.11
			return nil, fmt.Errorf("%w: it has a critical extension", ErrMalformed)
		}
		id, _ := t.Header["kid"].(string)
		return v.find(ctx, t.Method.Alg(), id)
	})
	if err != nil {
		return Grants{}, v.refusal(parsed, err)
	}
	grants, err := c.grants()
	if err == nil {
		v.memory.remember(token, grants, v.now())
	}
	return grants, err
}

// outside reports whether a rune is neither of base64url nor a dot.
func outside(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// refusal returns the error of this package for an error of the parser.
func (v *Verifier) refusal(token *jwt.Token, err error) error {
	if Reason(err) != "other" {
		return err
	}
	_, detail, _ := strings.Cut(err.Error(), ": ") // after the parser's own text for the reason
	if token != nil && token.Header != nil {
		if algorithm, _ := token.Header["alg"].(string); !slices.Contains(v.algorithms, algorithm) {
			return fmt.Errorf("%w: %s", ErrAlgorithm, detail)
		}
	}
	if errors.Is(err, jwt.ErrTokenMalformed) || errors.Is(err, jwt.ErrTokenUnverifiable) {
		return fmt.Errorf("%w: %s", ErrMalformed, detail)
	}
	for _, known := range []struct{ theirs, ours error }{
		{jwt.ErrTokenSignatureInvalid, ErrSignature},
		{jwt.ErrTokenExpired, ErrExpired},
		{jwt.ErrTokenNotValidYet, ErrNotYetValid},
		{jwt.ErrTokenInvalidAudience, ErrAudience},
		{jwt.ErrTokenInvalidIssuer, ErrIssuer},
	} {
		if errors.Is(err, known.theirs) {
			return known.ours
		}
	}
	return fmt.Errorf("%w: %s", ErrClaims, detail)
}

// claims are the claims of a token. Unknown claims are ignored (RFC 7519,
// section 4).
type claims struct {
	jwt.RegisteredClaims
	Rejoin grantClaims `json:"rejoin,omitzero"`
}

// grantClaims is the claim "rejoin".
type grantClaims struct {
	Publish   []Pattern `json:"publish,omitempty"`
	Subscribe []Pattern `json:"subscribe,omitempty"`
	Owners    []Pattern `json:"owners,omitempty"`
	Admin     bool      `json:"admin,omitempty"`
}

// check returns an error that wraps [ErrPattern] for the first pattern that can match no name, or no subject.
func (g grantClaims) check() error {
	for _, p := range slices.Concat(g.Publish, g.Subscribe) {
		if err := p.Check(); err != nil {
			return err
		}
	}
	for _, p := range g.Owners {
		if err := p.CheckSubject(); err != nil {
			return fmt.Errorf("owners: %w", err)
		}
	}
	return nil
}

// UnmarshalJSON takes the names of claims literally and once (RFC 7519, section 4),
// which the parser of the standard library does not.
func (c *claims) UnmarshalJSON(data []byte) error {
	type plain claims // without this method
	return json.Unmarshal(data, (*plain)(c))
}

func (c *claims) grants() (Grants, error) {
	if err := errors.Join(CheckSubject(c.Subject), c.Rejoin.check()); err != nil {
		return Grants{}, fmt.Errorf("%w: %w", ErrClaims, err)
	}
	return Grants{
		Subject: c.Subject, Owners: c.Rejoin.Owners, Publish: c.Rejoin.Publish, Subscribe: c.Rejoin.Subscribe, Admin: c.Rejoin.Admin,
		Expires: c.ExpiresAt.Add(Leeway),
	}, nil
}
