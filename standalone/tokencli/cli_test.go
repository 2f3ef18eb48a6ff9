package tokencli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/auth"
	"rejoin/shared/auth/authtest"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var cli CLI
	var out, errs bytes.Buffer
	a := app(&cli, args, time.Now)
	a.Stdout, a.Stderr = &out, &errs
	return a.Main(), out.String(), errs.String()
}

func TestToken_ServerAcceptsIt(t *testing.T) {
	cfg := authtest.Config(t)
	t.Setenv("REJOIN_JWT_SECRET_FILE", cfg.SecretFile)
	t.Setenv("REJOIN_JWT_AUDIENCE", cfg.Audience)
	t.Setenv("REJOIN_SUBJECT", "mallory")
	code, out, errs := run(t, "--subject=alice", "--publish=a,b*", "--publish=c", "--subscribe=*", "--ttl=90s", "--jwt-issuer=me", "--owners=user-*,b ob")
	if code != 0 || errs != "" || strings.Count(out, "\n") != 1 {
		t.Fatalf("%d %q %q", code, out, errs)
	}
	cfg.Issuer = "me"
	v := must.Value(auth.NewVerifier(cfg, nil))(t)
	got, err := v.Verify(t.Context(), strings.TrimSpace(out))
	if left := time.Until(got.Expires); err != nil || left > 90*time.Second+auth.Leeway || left < time.Minute {
		t.Errorf("%v; it is good for %s", err, left)
	}
	got.Expires = time.Time{}
	if diff := cmp.Diff(auth.Grants{Subject: "alice", Owners: []auth.Pattern{"user-*", "b ob"}, Publish: []auth.Pattern{"a", "b*", "c"}, Subscribe: []auth.Pattern{"*"}}, got); diff != "" {
		t.Error(diff)
	}
	if code, out, _ = run(t, "--subject=root", "--admin"); code != 0 || out == "" {
		t.Errorf("%d %q", code, out)
	}
}

func TestToken_InvalidRequest(t *testing.T) {
	good := []string{"--jwt-secret-file=" + authtest.Config(t).SecretFile, "--jwt-audience=a", "--subject=alice", "--publish=*"}
	short := filepath.Join(t.TempDir(), "short")
	must.NoError(t, os.WriteFile(short, []byte("x"), 0o600))
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no secret":      {good[1:], 2, "--jwt-secret-file"},
		"no audience":    {append(good[:1:1], good[2:]...), 2, "--jwt-audience"},
		"no subject":     {append(good[:2:2], good[3:]...), 2, "--subject"},
		"empty audience": {append(good[:4:4], "--jwt-audience="), 2, "--jwt-audience is empty; see"},
		"empty subject":  {append(good[:4:4], "--subject="), 2, "--subject: "},
		"a long subject": {append(good[:4:4], "--subject="+strings.Repeat("x", 257)), 2, "--subject: "},
		"nothing":        {good[:3:3], 2, "would grant nothing"},
		"a short secret": {append(good[1:4:4], "--jwt-secret-file="+short), 1, "at least 32"},
		"no such secret": {append(good[1:4:4], "--jwt-secret-file="+short+"er"), 1, "cannot be read"},
		"a bad pattern":  {append(good[:4:4], "--subscribe=a b"), 2, "--subscribe takes"},
		"a bad owner":    {append(good[:4:4], "--owners="+strings.Repeat("x", 257)), 2, "--owners takes"},
		"too long":       {append(good[:4:4], "--publish="+strings.Repeat(strings.Repeat("x", 127)+",", 99)+"y"), 1, "16384 bytes"},
		"no time":        {append(good[:4:4], "--ttl=0"), 2, "--ttl"},
		"an argument":    {append(good[:4:4], "x"), 2, "unexpected argument"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := run(t, tt.args...)
			if code != tt.code || out != "" || !strings.HasPrefix(errs, "rejoin token: ") || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, tt.want) {
				t.Errorf("%d %q %q, want %d and a sentence with %q", code, out, errs, tt.code, tt.want)
			}
		})
	}
}
