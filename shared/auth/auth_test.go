package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

// noon is when the tests take place.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return noon }

var quiet = slog.New(slog.DiscardHandler)

const secret = "a secret of at least thirty-two bytes"

// keyring is a key of each kind.
type keyring struct {
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
	ed  ed25519.PrivateKey
}

func newKeyring(t testing.TB) keyring {
	t.Helper()
	r, err1 := rsa.GenerateKey(rand.Reader, 2048)
	e, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, d, err3 := ed25519.GenerateKey(rand.Reader)
	must.NoError(t, errors.Join(err1, err2, err3))
	return keyring{r, e, d}
}

func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func publicPEM(t testing.TB, key any) []byte {
	t.Helper()
	der := must.Value(x509.MarshalPKIXPublicKey(key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func verifier(t testing.TB, cfg Config) *Verifier {
	t.Helper()
	cfg.Auth, cfg.Audience = ModeJWT, "rejoin"
	must.NoError(t, cfg.Validate())
	return must.Value(newVerifier(cfg, quiet, clock))(t)
}

// good are the claims of a token that is good at noon.
func good() jwt.MapClaims {
	return jwt.MapClaims{
		"sub": "alice", "aud": "rejoin", "iss": "login", "exp": noon.Add(time.Hour).Unix(),
		"rejoin": map[string]any{"publish": []string{"chat-*"}, "subscribe": []string{"chat-*", "news"}},
	}
}

// with returns claims with some replaced; nil removes one.
func with(pairs ...any) jwt.MapClaims {
	c := good()
	for i := 0; i+1 < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		if c[name] = pairs[i+1]; pairs[i+1] == nil {
			delete(c, name)
		}
	}
	return c
}

func sign(t testing.TB, method jwt.SigningMethod, key any, c jwt.Claims, header ...string) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	for i := 0; i+1 < len(header); i += 2 {
		token.Header[header[i]] = header[i+1]
	}
	return must.Value(token.SignedString(key))(t)
}

// raw makes a token of an unchanged header and payload, signed with the secret.
func raw(t testing.TB, header, payload string) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	signature := must.Value(jwt.SigningMethodHS256.Sign(text, []byte(secret)))(t)
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func TestVerify_EachAlgorithm(t *testing.T) {
	ring := newKeyring(t)
	for name, tt := range map[string]struct {
		cfg    Config
		method jwt.SigningMethod
		key    any
	}{
		"HS256": {Config{SecretFile: write(t, []byte(" "+secret+"\n"))}, jwt.SigningMethodHS256, []byte(secret)},
		"RS256": {Config{KeyFile: write(t, publicPEM(t, ring.rsa.Public()))}, jwt.SigningMethodRS256, ring.rsa},
		"RS256 in PKCS 1": {Config{KeyFile: write(t, pem.EncodeToMemory(&pem.Block{
			Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&ring.rsa.PublicKey),
		}))}, jwt.SigningMethodRS256, ring.rsa},
		"ES256": {Config{KeyFile: write(t, publicPEM(t, ring.ec.Public()))}, jwt.SigningMethodES256, ring.ec},
		"EdDSA": {Config{KeyFile: write(t, publicPEM(t, ring.ed.Public()))}, jwt.SigningMethodEdDSA, ring.ed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := verifier(t, tt.cfg).Verify(t.Context(), sign(t, tt.method, tt.key, good(), "kid", "any"))
			want := Grants{
				Subject: "alice", Publish: []Pattern{"chat-*"}, Subscribe: []Pattern{"chat-*", "news"},
				Expires: noon.Add(time.Hour + Leeway).Local(),
			}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestVerify_RefusalReasons(t *testing.T) {
	ring := newKeyring(t)
	v := verifier(t, Config{SecretFile: write(t, []byte(secret)), Issuer: "login"})
	hs := func(c jwt.Claims, header ...string) string {
		return sign(t, jwt.SigningMethodHS256, []byte(secret), c, header...)
	}
	fine := hs(good())
	head, payload, _ := strings.Cut(fine, ".")
	payload, signature, _ := strings.Cut(payload, ".")
	hour := noon.Add(time.Hour).Unix()
	for name, tt := range map[string]struct {
		token string
		want  error
	}{
		"good":                             {fine, nil},
		"good, of several audiences":       {hs(with("aud", []string{"other", "rejoin"})), nil},
		"good, without grants":             {hs(with("rejoin", nil)), nil},
		"good, expired within the leeway":  {hs(with("exp", noon.Add(-Leeway+time.Second).Unix())), nil},
		"good, not yet within the leeway":  {hs(with("nbf", noon.Add(Leeway).Unix())), nil},
		"good, with unknown claims":        {hs(with("name", "Alice")), nil},
		"good, with an unknown grant":      {hs(with("rejoin", map[string]any{"fly": true})), nil},
		"good, issued in the future":       {hs(with("iat", hour)), nil},
		"no token":                         {"", ErrMissing},
		"a space":                          {" ", ErrMalformed},
		"not a token":                      {"token", ErrMalformed},
		"two parts":                        {head + "." + payload, ErrMalformed},
		"four parts":                       {fine + "." + signature, ErrMalformed},
		"not base64url":                    {head + "." + payload + "=." + signature, ErrMalformed},
		"spaces around it":                 {" " + fine, ErrMalformed},
		"a line break in it":               {head + "." + payload + ".\n" + signature, ErrMalformed},
		"a header that is no object":       {raw(t, `[]`, `{}`), ErrMalformed},
		"claims that are no object":        {raw(t, `{"alg":"HS256"}`, `[]`), ErrMalformed},
		"a claim twice":                    {raw(t, `{"alg":"HS256"}`, `{"sub":"alice","sub":"bob","aud":"rejoin","exp":9000000000}`), ErrMalformed},
		"publish that is no list":          {hs(with("rejoin", map[string]any{"publish": "*"})), ErrMalformed},
		"admin that is no boolean":         {hs(with("rejoin", map[string]any{"admin": "yes"})), ErrMalformed},
		"longer than any token":            {strings.Repeat("x", maxTokenLen+1), ErrMalformed},
		"a critical extension":             {raw(t, `{"alg":"HS256","crit":["b64"],"b64":false}`, `{}`), ErrMalformed},
		"no algorithm":                     {raw(t, `{}`, `{}`), ErrAlgorithm},
		"the algorithm none":               {sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good()), ErrAlgorithm},
		"the algorithm None":               {raw(t, `{"alg":"None"}`, `{}`), ErrAlgorithm},
		"a longer hash":                    {sign(t, jwt.SigningMethodHS512, []byte(secret), good()), ErrAlgorithm},
		"a private key's algorithm":        {sign(t, jwt.SigningMethodRS256, ring.rsa, good()), ErrAlgorithm},
		"no signature":                     {head + "." + payload + ".", ErrSignature},
		"another secret":                   {sign(t, jwt.SigningMethodHS256, []byte(secret+"!"), good()), ErrSignature},
		"another payload":                  {head + "." + strings.Split(hs(with("sub", "bob")), ".")[1] + "." + signature, ErrSignature},
		"expired":                          {hs(with("exp", noon.Add(-Leeway).Unix())), ErrExpired},
		"expired before 1970":              {hs(with("exp", -1)), ErrExpired},
		"not yet valid":                    {hs(with("nbf", noon.Add(Leeway+time.Second).Unix())), ErrNotYetValid},
		"another audience":                 {hs(with("aud", "other")), ErrAudience},
		"no audience of several":           {hs(with("aud", []string{"rejoin2", "Rejoin"})), ErrAudience},
		"another issuer":                   {hs(with("iss", "Login")), ErrIssuer},
		"no expiry":                        {hs(with("exp", nil)), ErrClaims},
		"no audience":                      {hs(with("aud", nil)), ErrClaims},
		"no issuer":                        {hs(with("iss", nil)), ErrClaims},
		"no subject":                       {hs(with("sub", nil)), ErrClaims},
		"an empty subject":                 {hs(with("sub", "")), ErrClaims},
		"a subject that is too long":       {hs(with("sub", strings.Repeat("x", maxSubjectLen+1))), ErrClaims},
		"a subject under another name":     {raw(t, `{"alg":"HS256"}`, `{"Sub":"alice","aud":"rejoin","iss":"login","exp":9000000000}`), ErrClaims},
		"a pattern that matches nothing":   {hs(with("rejoin", map[string]any{"publish": []string{"a b"}})), ErrClaims},
		"a subscription to nothing at all": {hs(with("rejoin", map[string]any{"subscribe": []string{""}})), ErrClaims},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := v.Verify(t.Context(), tt.token)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if tt.want == nil {
				return
			}
			if !cmp.Equal(g, Grants{}) {
				t.Errorf("a token that is refused grants %+v", g)
			}
			if r := Reason(err); !slices.Contains(Reasons(), r) {
				t.Errorf("the reason of %v is %q", err, r)
			}
			if len(tt.token) > 20 && strings.Contains(err.Error(), tt.token) {
				t.Error("the error holds the token")
			}
		})
	}
}

// The public key is no secret. A token that is signed with its text as a secret must be refused.
func TestKeys_PublicKeyAsSecret(t *testing.T) {
	ring := newKeyring(t)
	for name, key := range map[string]any{"RSA": ring.rsa.Public(), "P-256": ring.ec.Public(), "Ed25519": ring.ed.Public()} {
		text := publicPEM(t, key)
		v := verifier(t, Config{KeyFile: write(t, text)})
		for _, secret := range [][]byte{text, []byte(strings.TrimSpace(string(text)))} {
			if _, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodHS256, secret, good())); !errors.Is(err, ErrAlgorithm) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestVerify_AlgorithmOfKey(t *testing.T) {
	ring, other := newKeyring(t), newKeyring(t)
	signers := map[string]struct {
		method            jwt.SigningMethod
		own, others, file any
	}{
		"RS256": {jwt.SigningMethodRS256, ring.rsa, other.rsa, ring.rsa.Public()},
		"ES256": {jwt.SigningMethodES256, ring.ec, other.ec, ring.ec.Public()},
		"EdDSA": {jwt.SigningMethodEdDSA, ring.ed, other.ed, ring.ed.Public()},
	}
	for kind, s := range signers {
		v := verifier(t, Config{KeyFile: write(t, publicPEM(t, s.file))})
		for algorithm, by := range signers {
			own, others := error(nil), ErrSignature
			if algorithm != kind {
				own, others = ErrAlgorithm, ErrAlgorithm
			}
			if _, err := v.Verify(t.Context(), sign(t, by.method, by.own, good())); !errors.Is(err, own) {
				t.Errorf("a key for %s and a token of %s: %v, want %v", kind, algorithm, err, own)
			}
			if _, err := v.Verify(t.Context(), sign(t, by.method, by.others, good())); !errors.Is(err, others) {
				t.Errorf("a key for %s and another's token of %s: %v, want %v", kind, algorithm, err, others)
			}
		}
	}
	v := verifier(t, Config{KeyFile: write(t, publicPEM(t, ring.rsa.Public()))})
	for _, method := range []jwt.SigningMethod{jwt.SigningMethodRS512, jwt.SigningMethodPS256} {
		if _, err := v.Verify(t.Context(), sign(t, method, ring.rsa, good())); !errors.Is(err, ErrAlgorithm) {
			t.Errorf("%s: %v", method.Alg(), err)
		}
	}
}

func TestKeys_InvalidFile(t *testing.T) {
	ring := newKeyring(t)
	weak := must.Value(x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: ring.rsa.N.Rsh(ring.rsa.N, 1500), E: 65537}))(t)
	other := must.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	private := must.Value(x509.MarshalPKCS8PrivateKey(ring.ed))(t)
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	for name, tt := range map[string]struct {
		secret, key []byte
		want        string
	}{
		"a short secret":       {[]byte("short"), nil, "head -c 32"},
		"a secret of spaces":   {[]byte(strings.Repeat(" ", 64)), nil, "has 0 bytes"},
		"a key as the secret":  {publicPEM(t, ring.ec.Public()), nil, "--jwt-key-file"},
		"no PEM":               {nil, []byte(secret), "-----BEGIN PUBLIC KEY-----"},
		"a private key":        {nil, block("PRIVATE KEY", private), "no business here"},
		"not a key":            {nil, block("PUBLIC KEY", []byte("x")), "cannot be read"},
		"a weak RSA key":       {nil, block("PUBLIC KEY", weak), "548 bits"},
		"a key of other curve": {nil, publicPEM(t, other.Public()), "P-384"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Auth: ModeJWT, Audience: "rejoin"}
			if tt.secret != nil {
				cfg.SecretFile = write(t, tt.secret)
			} else {
				cfg.KeyFile = write(t, tt.key)
			}
			_, err := NewVerifier(cfg, quiet)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want a sentence with %s", err, tt.want)
			}
		})
	}
	for _, cfg := range []Config{{SecretFile: "nowhere"}, {KeyFile: "nowhere"}} {
		if _, err := NewVerifier(cfg, quiet); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}

func TestConfig_Invalid(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want string // a part of the sentence; empty: no error
	}{
		"nothing":                         {Config{}, ""},
		"none":                            {Config{Auth: ModeNone, Insecure: true}, ""},
		"secret":                          {Config{Auth: ModeJWT, SecretFile: "f", Audience: "a"}, ""},
		"JWKS":                            {Config{Auth: ModeJWT, JWKSURL: "https://login.example/keys", Audience: "a", Issuer: "i"}, ""},
		"JWKS on this machine":            {Config{Auth: ModeJWT, JWKSURL: "http://[::1]:9/keys", Audience: "a", Issuer: "i"}, ""},
		"JWKS over HTTP all the same":     {Config{Auth: ModeJWT, JWKSURL: "http://login.example/keys", Audience: "a", Issuer: "i", Insecure: true}, ""},
		"another mode":                    {Config{Auth: "basic"}, `"basic"`},
		"a key and none":                  {Config{Auth: ModeNone, KeyFile: "f"}, "--auth=jwt"},
		"an audience and none":            {Config{Audience: "a"}, "--auth=jwt"},
		"an issuer and none":              {Config{Issuer: "i"}, "--auth=jwt"},
		"no key":                          {Config{Auth: ModeJWT, Audience: "a"}, "one of"},
		"two keys":                        {Config{Auth: ModeJWT, SecretFile: "f", KeyFile: "f", Audience: "a"}, "only one"},
		"no audience":                     {Config{Auth: ModeJWT, SecretFile: "f"}, "--jwt-audience"},
		"JWKS over HTTP":                  {Config{Auth: ModeJWT, JWKSURL: "http://login.example/keys", Audience: "a", Issuer: "i"}, "--insecure"},
		"JWKS without an issuer":          {Config{Auth: ModeJWT, JWKSURL: "https://login.example/keys", Audience: "a"}, "--jwt-issuer"},
		"JWKS in a file":                  {Config{Auth: ModeJWT, JWKSURL: "file:///keys", Audience: "a", Issuer: "i"}, "https://"},
		"JWKS that is no URL":             {Config{Auth: ModeJWT, JWKSURL: "https://\x00", Audience: "a", Issuer: "i"}, "https://"},
		"JWKS with a password in its URL": {Config{Auth: ModeJWT, JWKSURL: "https://u:p@login.example/", Audience: "a", Issuer: "i"}, "password"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.cfg.Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestConfig_PublicAddress(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:80": true, "127.8.9.1:0": true, "[::1]:80": true, "localhost:80": true, "LOCALHOST:80": true, "[::ffff:127.0.0.1]:1": true,
		"no port": true, "": true, // which cannot be listened on
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "example.com:80": false, "localhost.example.com:80": false, "128.0.0.1:1": false,
	} {
		err := Config{}.CheckListen(addr, "--edge-addr")
		if (err == nil) != want || err != nil && (!strings.Contains(err.Error(), "--insecure") || !strings.Contains(err.Error(), "--edge-addr "+addr)) {
			t.Errorf("%s: %v", addr, err)
		}
		for _, cfg := range []Config{{Auth: ModeJWT}, {Insecure: true}} {
			must.NoError(t, cfg.CheckListen(addr, "--edge-addr"))
		}
	}
}

func TestPatterns(t *testing.T) {
	long := strings.Repeat("x", 128)
	for pattern, tt := range map[Pattern]struct{ yes, no []string }{
		"*":                     {[]string{"a", "a*", long}, nil},
		"a":                     {[]string{"a"}, []string{"", "A", "ab", "a*", "*"}},
		"a*":                    {[]string{"a", "ab", "a*", "a*b"}, []string{"", "b", "Ab", "ba"}},
		"a**":                   {[]string{"a*", "a*b"}, []string{"a", "ab"}},
		"*a":                    {[]string{"*a"}, []string{"a", "ba"}},
		"a*b":                   {[]string{"a*b"}, []string{"ab", "axb"}},
		".*":                    {[]string{".a", ".."}, []string{"a"}},
		"a/../*":                {[]string{"a/../b"}, []string{"b"}},
		Pattern(long):           {[]string{long}, []string{long[1:]}},
		Pattern(long[1:] + "*"): {[]string{long}, []string{"y"}},
	} {
		must.NoError(t, pattern.Check())
		for _, name := range tt.yes {
			if !pattern.Match(name) {
				t.Errorf("%s does not match %s", pattern, name)
			}
		}
		for _, name := range tt.no {
			if pattern.Match(name) {
				t.Errorf("%s matches %s", pattern, name)
			}
		}
	}
	for _, bad := range []Pattern{"", ".", "..", "a b", "ä", "ä*", "\x00*", Pattern(long + "x"), Pattern(long + "*")} {
		if err := bad.Check(); !errors.Is(err, ErrPattern) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestGrants(t *testing.T) {
	var none Grants
	if none.MayPublish("a") || none.MaySubscribe("a") || none.Admin {
		t.Error("the zero value grants something")
	}
	all := Everything()
	if !all.MayPublish("a") || !all.MaySubscribe("a") || !all.Admin || !all.Expires.IsZero() {
		t.Error("everything is not all")
	}
	one := Grants{Publish: []Pattern{"b", "p*"}, Subscribe: []Pattern{"s"}, Admin: true}
	if !one.MayPublish("p1") || one.MayPublish("s") || !one.MaySubscribe("s") || one.MaySubscribe("p1") {
		t.Error("publish and subscribe are mixed up")
	}
}

func TestGrantsActsFor(t *testing.T) {
	for name, tt := range map[string]struct {
		owners  []Pattern
		yes, no []string
	}{
		"without the claim": {nil, []string{"alice"}, []string{"", "bob", "Alice", "alice2", "alic", "*"}},
		"all":               {[]Pattern{All}, []string{"alice", "bob", "*", "\u00fc", "a b"}, []string{""}},
		"some":              {[]Pattern{"user-*", "bob"}, []string{"alice", "bob", "user-", "user-1", "user-*"}, []string{"", "bobby", "user", "User-1"}},
	} {
		g := Grants{Subject: "alice", Owners: tt.owners}
		for _, owner := range tt.yes {
			if !g.ActsFor(owner) {
				t.Errorf("%s: it does not act for %q", name, owner)
			}
		}
		for _, owner := range tt.no {
			if g.ActsFor(owner) {
				t.Errorf("%s: it acts for %q", name, owner)
			}
		}
	}
	if (Grants{}).ActsFor("") {
		t.Error("the zero value acts for sessions without an owner")
	}
}

func TestPatterns_Subjects(t *testing.T) {
	long := strings.Repeat("x", maxSubjectLen)
	for _, good := range []Pattern{"*", "a", "a*", "auth0|5f7c", "a b", "ä*", "**", Pattern(long), Pattern(long + "*")} {
		must.NoError(t, good.CheckSubject())
	}
	for _, bad := range []Pattern{"", Pattern(long + "x"), Pattern(long + "x*")} {
		if err := bad.CheckSubject(); !errors.Is(err, ErrPattern) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSign_Verifies(t *testing.T) {
	v := verifier(t, Config{SecretFile: write(t, []byte(secret)), Issuer: "me"})
	token := Token{Subject: "alice", Audience: "rejoin", Issuer: "me", Publish: []Pattern{"a*"}, Subscribe: []Pattern{"*"}, Owners: []Pattern{"user-*", "a b"}, Admin: true, Issued: noon, Expires: noon.Add(time.Minute)}
	text := must.Value(token.Sign([]byte(secret)))(t)
	got, err := v.Verify(t.Context(), text)
	want := Grants{Subject: "alice", Owners: []Pattern{"user-*", "a b"}, Publish: []Pattern{"a*"}, Subscribe: []Pattern{"*"}, Admin: true, Expires: noon.Add(time.Minute + Leeway).Local()}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for name, change := range map[string]func(*Token){
		"no subject":      func(t *Token) { t.Subject = "" },
		"a long subject":  func(t *Token) { t.Subject = strings.Repeat("x", maxSubjectLen+1) },
		"no audience":     func(t *Token) { t.Audience = "" },
		"no time to live": func(t *Token) { t.Expires = t.Issued },
		"a bad pattern":   func(t *Token) { t.Subscribe = []Pattern{"a b"} },
		"a bad owner":     func(t *Token) { t.Owners = []Pattern{""} },
	} {
		bad := token
		change(&bad)
		if _, err := bad.Sign([]byte(secret)); !errors.Is(err, ErrClaims) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A token with any content is refused or makes sense.
func FuzzTokens(f *testing.F) {
	v := verifier(f, Config{SecretFile: write(f, []byte(secret))})
	payload, _ := json.Marshal(good())
	f.Add(`{"alg":"HS256"}`, string(payload), true)
	f.Add(`{"alg":"none"}`, string(payload), true)
	f.Add(`{"alg":"HS256","crit":[]}`, `{"sub":"a","aud":["rejoin"],"exp":1e300}`, true)
	f.Add(`{"alg":"HS256"}`, `{"sub":"a","aud":"rejoin","exp":9000000000.5,"rejoin":{"publish":["*"]}}`, false)
	f.Add(`{"alg":"HS256"}`, `{"sub":"a","aud":"rejoin","exp":9000000000,"rejoin":{"publish":["*"],"owners":["user-*",""]}}`, true)
	f.Fuzz(func(t *testing.T, header, payload string, signed bool) {
		text := raw(t, header, payload)
		if !signed {
			text = header + "." + payload
		}
		g, err := v.Verify(t.Context(), text)
		switch {
		case err != nil && Reason(err) == "other":
			t.Errorf("an error of no kind: %v", err)
		case err == nil && (!signed || g.Subject == "" || !g.Expires.After(noon)):
			t.Errorf("%q is taken as %+v", payload, g)
		}
		for _, p := range slices.Concat(g.Publish, g.Subscribe) {
			must.NoError(t, p.Check())
		}
		for _, p := range g.Owners {
			must.NoError(t, p.CheckSubject())
		}
		if g.ActsFor("") {
			t.Error("somebody acts for an empty owner")
		}
	})
}

// A pattern matches the names that it describes, and a refused one would have matched no name.
func FuzzPatterns(f *testing.F) {
	f.Add("*", "a")
	f.Add("a*", "ab")
	f.Add("a**", "a*")
	f.Add("..*", "...")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p := Pattern(pattern)
		legal := Pattern(name).Check() == nil && !strings.HasSuffix(name, "*")
		if p.Check() != nil {
			if legal && p.Match(name) {
				t.Errorf("%q is refused and matches %q", pattern, name)
			}
			return
		}
		beginning, open := strings.CutSuffix(pattern, "*")
		if want := name == pattern || open && strings.HasPrefix(name, beginning); p.Match(name) != want {
			t.Errorf("%q and %q: %v", pattern, name, !want)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	ring := newKeyring(b)
	for _, of := range []struct {
		name   string
		cfg    Config
		method jwt.SigningMethod
		key    any
	}{
		{"HS256", Config{SecretFile: write(b, []byte(secret))}, jwt.SigningMethodHS256, []byte(secret)},
		{"RS256", Config{KeyFile: write(b, publicPEM(b, ring.rsa.Public()))}, jwt.SigningMethodRS256, ring.rsa},
		{"ES256", Config{KeyFile: write(b, publicPEM(b, ring.ec.Public()))}, jwt.SigningMethodES256, ring.ec},
		{"EdDSA", Config{KeyFile: write(b, publicPEM(b, ring.ed.Public()))}, jwt.SigningMethodEdDSA, ring.ed},
	} {
		for _, anew := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/anew=%v", of.name, anew), func(b *testing.B) {
				v, token := verifier(b, of.cfg), sign(b, of.method, of.key, good())
				b.ReportAllocs()
				for b.Loop() {
					if anew {
						v.memory.Purge()
					}
					must.Value(v.Verify(b.Context(), token))(b)
				}
			})
		}
	}
}

func TestGrants_MaySubscribeAll(t *testing.T) {
	for pattern, want := range map[Pattern]bool{"orders.*": true, "orders.eu*": true, "orders*": false, "*": false, "one*": false, "a**": true, "a*": false} {
		if got := (Grants{Subscribe: []Pattern{"orders.*", "one", "a**"}}).MaySubscribeAll(pattern); got != want {
			t.Errorf("%s: %t", pattern, got)
		}
		if !Everything().MaySubscribeAll(pattern) {
			t.Errorf("%s: not to one who may read all", pattern)
		}
	}
}
