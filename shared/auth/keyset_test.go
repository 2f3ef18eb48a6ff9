package auth

import (
	"context"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"rejoin/shared/must"
)

// issuer serves a key set, as a signer of tokens does.
type issuer struct {
	*httptest.Server
	answer  atomic.Pointer[http.HandlerFunc]
	fetches atomic.Int64
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	is := &issuer{}
	is.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		is.fetches.Add(1)
		(*is.answer.Load())(w, r)
	}))
	t.Cleanup(is.Close)
	return is
}

func (is *issuer) handle(h http.HandlerFunc) { is.answer.Store(&h) }

func (is *issuer) serve(keys ...map[string]any) {
	is.handle(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
	})
}

func encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (k keyring) rsaJWK(id string) map[string]any {
	return map[string]any{"kty": "RSA", "kid": id, "n": encoded(k.rsa.N.Bytes()), "e": encoded(big.NewInt(int64(k.rsa.E)).Bytes())}
}

func (k keyring) ecJWK(t *testing.T, id string) map[string]any {
	t.Helper()
	point := must.Value(k.ec.PublicKey.Bytes())(t)
	return map[string]any{"kty": "EC", "crv": elliptic.P256().Params().Name, "kid": id, "x": encoded(point[1:33]), "y": encoded(point[33:]), "use": "sig", "alg": "ES256"}
}

func (k keyring) edJWK(id string) map[string]any {
	return map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": id, "x": encoded(k.ed[32:]), "key_ops": []string{"verify"}}
}

// moving is a clock that a test moves.
type moving struct{ past atomic.Int64 }

func (m *moving) now() time.Time       { return noon.Add(time.Duration(m.past.Load())) }
func (m *moving) pass(d time.Duration) { m.past.Add(int64(d)) }

func setVerifier(t *testing.T, url string) (*Verifier, *moving) {
	t.Helper()
	m := &moving{}
	v := must.Value(newVerifier(Config{Auth: ModeJWT, Audience: "rejoin", JWKSURL: url, Issuer: "login"}, quiet, m.now))(t)
	return v, m
}

// A session belongs to a subject. Where a set holds keys of several issuers, alice of one must
// not get the sessions of alice of the other.
func TestAttackSubjectOfAnotherIssuer(t *testing.T) {
	is, ring, other := newIssuer(t), newKeyring(t), newKeyring(t)
	is.serve(ring.edJWK("ours"), other.edJWK("theirs"))
	cfg := Config{Auth: ModeJWT, Audience: "rejoin", JWKSURL: is.URL}
	if err := cfg.Validate(); err == nil {
		t.Error("whose tokens count is not asked")
	}
	cfg.Issuer = "login"
	v := verifier(t, cfg)
	ours := sign(t, jwt.SigningMethodEdDSA, ring.ed, good(), "kid", "ours")
	if g, err := v.Verify(t.Context(), ours); err != nil || g.Subject != "alice" {
		t.Errorf("%+v, %v", g, err)
	}
	for _, issuer := range []any{"another", "", nil, []string{"login"}} {
		theirs := sign(t, jwt.SigningMethodEdDSA, other.ed, with("iss", issuer), "kid", "theirs")
		if g, err := v.Verify(t.Context(), theirs); err == nil {
			t.Errorf("%v: %+v", issuer, g)
		}
	}
}

func TestKeySet(t *testing.T) {
	is, ring := newIssuer(t), newKeyring(t)
	altered := func(k map[string]any, name string, value any) map[string]any { k[name] = value; return k }
	is.serve(
		ring.rsaJWK("r"), ring.ecJWK(t, "e"), ring.edJWK("d"), newKeyring(t).edJWK("d2"),
		// Keys that must not disable the others, or be used.
		map[string]any{"kty": "oct", "kid": "o", "k": encoded([]byte(secret))}, map[string]any{"kty": "new"}, map[string]any{},
		map[string]any{"kty": "new", "kid": 1}, altered(ring.rsaJWK("ops"), "key_ops", "verify"),
		altered(ring.rsaJWK("enc"), "use", "enc"), altered(ring.rsaJWK("sign"), "key_ops", []string{"sign"}), altered(ring.rsaJWK("other"), "alg", "RS512"),
		altered(ring.rsaJWK("weak"), "n", encoded(ring.rsa.N.Bytes()[:100])), altered(ring.rsaJWK("even"), "e", "Ag"), altered(ring.rsaJWK("text"), "e", "?"),
		altered(ring.ecJWK(t, "curve"), "crv", "P-384"), altered(ring.ecJWK(t, "off"), "x", encoded(make([]byte, 32))), altered(ring.ecJWK(t, "short"), "y", "AA"),
		altered(ring.edJWK("x"), "x", "AA"),
		ring.ecJWK(t, "e"), // again, as in a set that was put together
	)
	v, _ := setVerifier(t, is.URL)
	rs, es, ed, hs := jwt.SigningMethodRS256, jwt.SigningMethodES256, jwt.SigningMethodEdDSA, jwt.SigningMethodHS256
	for name, tt := range map[string]struct {
		token string
		want  error
	}{
		"RS256":                       {sign(t, rs, ring.rsa, good(), "kid", "r"), nil},
		"ES256":                       {sign(t, es, ring.ec, good(), "kid", "e"), nil},
		"EdDSA":                       {sign(t, ed, ring.ed, good(), "kid", "d"), nil},
		"the only key of a kind":      {sign(t, es, ring.ec, good()), nil},
		"one of two keys of a kind":   {sign(t, ed, ring.ed, good()), ErrUnknownKey},
		"no such key":                 {sign(t, rs, ring.rsa, good(), "kid", "unknown"), ErrUnknownKey},
		"another kind of key":         {sign(t, rs, ring.rsa, good(), "kid", "e"), ErrUnknownKey},
		"another key":                 {sign(t, rs, newKeyring(t).rsa, good(), "kid", "r"), ErrSignature},
		"a secret of the set":         {sign(t, hs, []byte(secret), good(), "kid", "o"), ErrAlgorithm},
		"a key for encryption":        {sign(t, rs, ring.rsa, good(), "kid", "enc"), ErrUnknownKey},
		"a key for signing only":      {sign(t, rs, ring.rsa, good(), "kid", "sign"), ErrUnknownKey},
		"a key for another algorithm": {sign(t, rs, ring.rsa, good(), "kid", "other"), ErrUnknownKey},
		"a point off the curve":       {sign(t, es, ring.ec, good(), "kid", "off"), ErrUnknownKey},
		"an address of its own":       {sign(t, rs, newKeyring(t).rsa, good(), "kid", "r", "jku", "http://127.0.0.1/"), ErrSignature},
	} {
		if _, err := v.Verify(t.Context(), tt.token); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if n := is.fetches.Load(); n != 1 {
		t.Errorf("the set was fetched %d times", n)
	}
}

func TestParseKeySet_OneKey(t *testing.T) {
	ring := newKeyring(t)
	for _, tt := range []struct {
		member string
		value  any
		want   int
	}{
		{"e", "AQAB", 1},
		{"e", "AQ", 0},           // 1
		{"e", "Ag", 0},           // 2
		{"e", "BA", 0},           // 4
		{"e", "AQAAAAAAAQAB", 0}, // more than 64 bits, of which the last are 65537
		{"e", "AQAB==", 0},
		// Members that do not serve to check a signature do not matter.
		{"x5u", "http://127.0.0.1:1/certificates", 1},
		{"x5c", []string{"AAAA"}, 1},
		{"x5c", "AAAA", 1},
		{"key_ops", []string{"verify", "new"}, 1},
	} {
		key := ring.rsaJWK("r")
		key[tt.member] = tt.value
		data := must.Value(json.Marshal(map[string]any{"keys": []any{key}}))(t)
		if keys, err := parseKeySet(data); len(keys) != tt.want {
			t.Errorf("%s = %v: %d keys, want %d: %v", tt.member, tt.value, len(keys), tt.want, err)
		}
	}
}

func TestKeySet_Rotation(t *testing.T) {
	is, before, after := newIssuer(t), newKeyring(t), newKeyring(t)
	older, newer := sign(t, jwt.SigningMethodEdDSA, before.ed, good(), "kid", "1"), sign(t, jwt.SigningMethodEdDSA, after.ed, good(), "kid", "2")
	v, clock := setVerifier(t, is.URL)
	expect := func(token string, want error, fetches int64) {
		t.Helper()
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if n := is.fetches.Load(); n != fetches {
			t.Errorf("the set was fetched %d times, want %d", n, fetches)
		}
	}
	is.serve(before.edJWK("1"))
	expect(older, nil, 1)
	expect(newer, ErrUnknownKey, 1) // fetched a moment ago
	is.serve(before.edJWK("1"), after.edJWK("2"))
	clock.pass(keySetPause)
	expect(newer, nil, 2) // a new key is known as soon as it is used
	expect(older, nil, 2)
	is.serve(after.edJWK("2"))
	expect(older, nil, 2)
	clock.pass(keySetAge)
	expect(older, ErrUnknownKey, 3) // and a removed one is forgotten
	expect(newer, nil, 3)
}

func TestKeySet_Unreachable(t *testing.T) {
	is, ring := newIssuer(t), newKeyring(t)
	token := sign(t, jwt.SigningMethodEdDSA, ring.ed, good(), "kid", "1")
	v, clock := setVerifier(t, is.URL+"?key=hidden")
	for name, answer := range map[string]http.HandlerFunc{
		"an error":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"elsewhere": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/keys", http.StatusFound) },
		"not JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"no keys":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) },
		"no end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", maxKeySetBytes+1)))
		},
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("{"))
		},
		"hanging up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		is.handle(answer)
		clock.pass(keySetPause)
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
	is.serve(ring.edJWK("1"))
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("there was no pause: %v", err)
	}
	clock.pass(keySetPause)
	must.Value(v.Verify(t.Context(), token))(t)

	// From now on the keys are known, and stay good while the issuer is down.
	is.Close()
	clock.pass(keySetAge)
	must.Value(v.Verify(t.Context(), token))(t)
	if _, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodEdDSA, ring.ed, good(), "kid", "2")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a key that may be new: %v", err)
	}
}

// An issuer that withdraws its only key revokes it. Tokens are then refused as during an outage, and not as
// invalid: if the set is empty by mistake, clients try again, and the keys are fetched again with the next
// token. Another document, such as the page of a proxy, revokes nothing.
func TestKeySet_NoKeyLeft(t *testing.T) {
	is, ring := newIssuer(t), newKeyring(t)
	token := sign(t, jwt.SigningMethodEdDSA, ring.ed, with("exp", noon.Add(24*time.Hour).Unix()), "kid", "1")
	v, clock := setVerifier(t, is.URL)
	expect := func(t *testing.T, want error) {
		t.Helper()
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	for answer, want := range map[string]error{
		`{}`:                         nil,
		`{"error":"try again"}`:      nil,
		`{"keys":null}`:              nil,
		`{"keys":{}}`:                nil,
		`[]`:                         nil,
		`{"keys":[]}`:                ErrUnavailable,
		`{"keys":[{"kty":"oct"}]}`:   ErrUnavailable,
		`{"keys":[{"kty":"other"}]}`: ErrUnavailable,
	} {
		t.Run(answer, func(t *testing.T) {
			is.serve(ring.edJWK("1"))
			clock.pass(keySetAge)
			expect(t, nil)
			is.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) })
			clock.pass(keySetAge)
			expect(t, want)
			expect(t, want)
		})
	}
}

func TestKeySet_OneFetch(t *testing.T) {
	is, ring := newIssuer(t), newKeyring(t)
	arrived, goOn := make(chan struct{}), make(chan struct{})
	is.handle(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived) // a second fetch would panic
		<-goOn
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{ring.edJWK("1")}})
	})
	v, _ := setVerifier(t, is.URL)
	token := sign(t, jwt.SigningMethodEdDSA, ring.ed, good(), "kid", "1")
	var all sync.WaitGroup
	verify := func() {
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Error(err)
		}
	}
	all.Go(verify)
	<-arrived
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Verify(gone, token); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that does not wait gets %v", err)
	}
	for range 10 {
		all.Go(verify)
	}
	close(goOn)
	all.Wait()
}

// The keys of any set are of a known kind and strong enough, or left out.
func FuzzKeySets(f *testing.F) {
	ring := newKeyring(f)
	for _, key := range []map[string]any{ring.rsaJWK("r"), ring.edJWK("d"), {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, {"kty": "oct", "k": "AA"}} {
		set := must.Value(json.Marshal(map[string]any{"keys": []any{key}}))(f)
		f.Add(set)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := parseKeySet(data)
		if (err == nil) != (len(keys) > 0) {
			t.Errorf("%d keys and %v", len(keys), err)
		}
		for _, k := range keys {
			if algorithm, err := algorithmOf(k.key); err != nil || algorithm != k.algorithm {
				t.Errorf("a key for %s: %s, %v", k.algorithm, algorithm, err)
			}
		}
	})
}
