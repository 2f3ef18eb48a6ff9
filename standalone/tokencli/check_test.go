package tokencli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
)

func checks(t *testing.T, in string, now time.Time, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := checkApp(args, strings.NewReader(in), func() time.Time { return now })
	a.Stdout, a.Stderr = &out, &errs
	return a.Main(), out.String(), errs.String()
}

func TestCheck_Accepted(t *testing.T) {
	cfg := authtest.Config(t)
	t.Setenv("REJOIN_AUTH", "jwt")
	t.Setenv("REJOIN_JWT_SECRET_FILE", cfg.SecretFile)
	t.Setenv("REJOIN_JWT_AUDIENCE", cfg.Audience)
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	token := authtest.Token(t, "alice", func(token *auth.Token) {
		token.Expires, token.Publish, token.Admin = expires, []auth.Pattern{"chat-*", "a"}, true
	})
	late := "expires    " + expires.Format(time.RFC3339) + " (2s ago, accepted for another 8s)\n"
	if code, out, errs := checks(t, "", expires.Add(2*time.Second), token); code != 0 || !strings.HasSuffix(out, late) {
		t.Errorf("an expired token: %d %q %q", code, out, errs)
	}
	want := "accepted\nsubject    \"alice\"\npublish    \"chat-*\", \"a\"\nsubscribe  -\nowners     -\nadmin      yes\nexpires    " + expires.Format(time.RFC3339) + " (in 1m0s)\n"
	for in, args := range map[string][]string{"": {token}, token + "\n": {"-"}, token: nil} {
		if code, out, errs := checks(t, in, expires.Add(-time.Minute), args...); code != 0 || out != want || errs != "" {
			t.Errorf("%d %q\n%s", code, errs, out)
		}
	}
}

func TestCheck_Refused(t *testing.T) {
	cfg := authtest.Config(t)
	flags := []string{"--auth=jwt", "--jwt-secret-file=" + cfg.SecretFile, "--jwt-audience=" + cfg.Audience}
	token := func(change func(*auth.Token)) string { return authtest.Token(t, "alice", change) }
	for name, tt := range map[string]struct {
		token, out, err string
	}{
		"expired": {token(func(token *auth.Token) {
			token.Issued, token.Expires = time.Unix(1_000_000_000, 0), time.Unix(1_000_000_060, 0)
		}), `exp     1000000060 (`, "refused: the token has expired\n"},
		"another audience":   {token(func(token *auth.Token) { token.Audience = "other" }), `aud     ["other"]`, "refused: the token is for another audience\n"},
		"another key":        {token(nil)[:len(token(nil))-4] + "AAAA", `sub     "alice"`, "refused: the token's signature is wrong\n"},
		"control characters": {token(func(token *auth.Token) { token.Subject, token.Audience = "a\x1b\u009b", "other" }), "sub     ", "refused: "},
		"no token":           {"\n", "", "refused: there is no token\n"},
		"no JWT":             {"a.b.c", "", "refused: the token is malformed: could not base64 decode header: "},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := checks(t, tt.token, time.Now(), flags...)
			if code != 1 || !strings.Contains(out, tt.out) || !strings.HasPrefix(errs, "rejoin token check: "+tt.err) || strings.Count(errs, "\n") != 1 {
				t.Errorf("%d %q\n%s", code, errs, out)
			}
			if strings.ContainsAny(out, "\x1b\u009b") {
				t.Errorf("it prints control characters: %q", out)
			}
		})
	}
}

// Standard input has no data, and does not end.
func TestCheck_Interrupted(t *testing.T) {
	cfg := authtest.Config(t)
	in, never := io.Pipe()
	defer func() { _ = never.Close() }()
	var out, errs bytes.Buffer
	a := checkApp([]string{"--auth=jwt", "--jwt-secret-file=" + cfg.SecretFile, "--jwt-audience=" + cfg.Audience}, in, time.Now)
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	a.Stdout, a.Stderr, a.Signals = &out, &errs, signals
	if code := a.Main(); code != 1 || out.Len() > 0 || errs.String() != "rejoin token check: interrupted\n" {
		t.Errorf("%d %q %q", code, &errs, &out)
	}
}

func TestCheck_Settings(t *testing.T) {
	for want, args := range map[string][]string{
		"without access control":   nil,
		"needs --jwt-audience":     {"--auth=jwt", "--jwt-key-file=/nonexistent/key"},
		"switch it on":             {"--jwt-audience=a"},
		"unexpected argument here": {"--auth=jwt", "token", "here"},
	} {
		if code, out, errs := checks(t, "x", time.Now(), args...); code != 2 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}
	if code, _, errs := checks(t, "x", time.Now(), "--auth=jwt", "--jwt-key-file=/nonexistent/key", "--jwt-audience=a"); code != 1 || !strings.Contains(errs, "--jwt-key-file") {
		t.Errorf("%d %q", code, errs)
	}
}
