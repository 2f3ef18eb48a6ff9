// Package authtest makes tokens for tests with access control.
package authtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"rejoin/shared/auth"
	"rejoin/shared/must"
)

const (
	// Audience is that of the tokens.
	Audience = "rejoin.test"

	// Secret is the shared secret that the tokens are signed with.
	Secret = "the secret of the tests, which everybody may know"
)

// Config returns a configuration of access control that takes the tokens of this package.
func Config(t testing.TB) auth.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(path, []byte(Secret+"\n"), 0o600))
	return auth.Config{Auth: auth.ModeJWT, SecretFile: path, Audience: Audience}
}

// Token returns a token that is good for an hour, unless change makes another one of it.
func Token(t testing.TB, subject string, change func(*auth.Token)) string {
	t.Helper()
	now := time.Now()
	token := auth.Token{Subject: subject, Audience: Audience, Issued: now, Expires: now.Add(time.Hour)}
	if change != nil {
		change(&token)
	}
	return must.Value(token.Sign([]byte(Secret)))(t)
}

// Of returns a token that may publish and subscribe to the sessions of a pattern.
func Of(t testing.TB, subject string, pattern auth.Pattern) string {
	t.Helper()
	return Token(t, subject, func(token *auth.Token) {
		token.Publish, token.Subscribe = []auth.Pattern{pattern}, []auth.Pattern{pattern}
	})
}
