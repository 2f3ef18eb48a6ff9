// Package auth turns bearer tokens into grants: a subject, and its permissions on
// sessions. It is independent of HTTP.
//
// A token is a JSON Web Token (RFC 7519), signed with HS256, RS256, ES256 or EdDSA.
// It must have the claims "sub", "aud" and "exp"; "nbf" is honoured. The claim
// "rejoin" holds the grants:
//
//	{
//	  "sub": "alice",
//	  "aud": "rejoin.example",
//	  "exp": 1790000000,
//	  "rejoin": {"publish": ["chat-*"], "subscribe": ["chat-*", "news"], "admin": false}
//	}
//
// A session belongs to the subject of the token that created it, for good. A grant
// has the names that a token may use; the registry has the owner of each session.
package auth
