package auth

import (
	"errors"
	"slices"
)

// The reasons for which a token is refused. A client receives the same answer for all:
// its token is not valid; only [ErrUnavailable] is not about the
// token. The program's log and metrics have the reason.
var (
	// ErrMissing is returned when there is no token.
	ErrMissing = reason("missing", "there is no token")

	// ErrMalformed is returned when a token is not a JWT, or asks for an extension
	// ("crit") that is not understood.
	ErrMalformed = reason("malformed", "the token is malformed")

	// ErrAlgorithm is returned when a token names an algorithm that does not fit
	// the kind of the configured key, "none" among them.
	ErrAlgorithm = reason("algorithm", "the token's algorithm is not allowed")

	// ErrSignature is returned when the signature is not that of the key.
	ErrSignature = reason("signature", "the token's signature is wrong")

	// ErrUnknownKey is returned when the key set has no key of the token's key ID.
	ErrUnknownKey = reason("unknown_key", "the token's key is unknown")

	// ErrExpired is returned when "exp" has passed.
	ErrExpired = reason("expired", "the token has expired")

	// ErrNotYetValid is returned before "nbf".
	ErrNotYetValid = reason("not_yet_valid", "the token is not valid yet")

	// ErrAudience is returned when the token is for another audience.
	ErrAudience = reason("audience", "the token is for another audience")

	// ErrIssuer is returned when the token is of another issuer.
	ErrIssuer = reason("issuer", "the token is of another issuer")

	// ErrClaims is returned when a required claim is missing, or a claim makes no
	// sense, such as a pattern that no session can match.
	ErrClaims = reason("claims", "the token's claims are not complete and valid")

	// ErrUnavailable is returned when the key set could not be fetched, so that the
	// token cannot be checked. A later attempt may succeed.
	ErrUnavailable = reason("unavailable", "the key set cannot be fetched")
)

// ErrPattern is returned for a pattern that no session's name, or no subject, can match.
var ErrPattern = errors.New("not a pattern of names")

// refusal is a reason for which a token is refused, with its word for a metric.
type refusal struct{ word, text string }

func (r *refusal) Error() string { return r.text }

var words []string // of all reasons

func reason(word, text string) error {
	words = append(words, word)
	return &refusal{word, text}
}

// Reason returns a word for an error of [Verifier.Verify], one of [Reasons], or
// "other" for any other error.
func Reason(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.word
	}
	return "other"
}

// Reasons returns all words that [Reason] has for the errors of [Verifier.Verify].
func Reasons() []string { return slices.Clone(words) }
