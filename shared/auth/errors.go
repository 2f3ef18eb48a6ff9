package auth

import "errors"

// The reasons for which a token is refused. A client receives the same answer for all:
// its token is not valid; only [ErrUnavailable] is not about the
// token. They go into the log and the metrics.
var (
	// ErrMissing is returned when there is no token.
	ErrMissing = errors.New("there is no token")

	// ErrMalformed is returned when a token is not a JWT, or asks for an extension
	// ("crit") that is not understood.
	ErrMalformed = errors.New("the token is malformed")

	// ErrAlgorithm is returned when a token names an algorithm that does not go with
	// the kind of key that is configured, "none" among them.
	ErrAlgorithm = errors.New("the token's algorithm is not allowed")

	// ErrSignature is returned when the signature is not that of the key.
	ErrSignature = errors.New("the token's signature is wrong")

	// ErrUnknownKey is returned when the key set has no key of the token's key ID.
	ErrUnknownKey = errors.New("the token's key is unknown")

	// ErrExpired is returned when "exp" has passed.
	ErrExpired = errors.New("the token has expired")

	// ErrNotYetValid is returned before "nbf".
	ErrNotYetValid = errors.New("the token is not valid yet")

	// ErrAudience is returned when the token was made for somebody else.
	ErrAudience = errors.New("the token is for another audience")

	// ErrIssuer is returned when the token was made by somebody else.
	ErrIssuer = errors.New("the token is of another issuer")

	// ErrClaims is returned when a claim that is needed is missing, or one that is
	// there makes no sense, such as a pattern that no session can match.
	ErrClaims = errors.New("the token's claims are not complete and valid")

	// ErrUnavailable is returned when the key set could not be fetched, so that nothing
	// can be said about the token. It may pass.
	ErrUnavailable = errors.New("the key set cannot be fetched")
)

var (
	// ErrPattern is returned for a pattern that no session's name, or no subject, can match.
	ErrPattern = errors.New("not a pattern of names")

	// ErrSubject is returned for what no token can have as its subject.
	ErrSubject = errors.New("not a subject")
)

// reasons names each of the errors for a metric.
var reasons = []struct {
	err  error
	name string
}{
	{ErrMissing, "missing"},
	{ErrMalformed, "malformed"},
	{ErrAlgorithm, "algorithm"},
	{ErrSignature, "signature"},
	{ErrUnknownKey, "unknown_key"},
	{ErrExpired, "expired"},
	{ErrNotYetValid, "not_yet_valid"},
	{ErrAudience, "audience"},
	{ErrIssuer, "issuer"},
	{ErrClaims, "claims"},
	{ErrUnavailable, "unavailable"},
}

// Reason returns a word for an error of [Verifier.Verify], one of [Reasons], or
// "other" for any other error.
func Reason(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "other"
}

// Reasons returns all words that [Reason] has for the errors of [Verifier.Verify].
func Reasons() []string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.name)
	}
	return all
}
