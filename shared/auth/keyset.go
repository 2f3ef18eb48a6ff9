package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"time"
)

const (
	// keySetAge is the age at which a key set is fetched again: how long a key that was
	// taken out of it may still be good.
	keySetAge = 5 * time.Minute

	// keySetPause is the least time between two fetches, however many tokens name unknown
	// keys. A new key may be unknown for as long.
	keySetPause = 10 * time.Second

	// keySetTimeout bounds a fetch.
	keySetTimeout = 5 * time.Second

	// maxKeySetBytes bounds a fetched set.
	maxKeySetBytes = 1 << 20
)

// keySet is a JWK Set (RFC 7517, section 5) behind a URL. It is fetched when a token
// needs it: when it is too old, or does not have a token's key. The first caller for which that holds
// fetches it; others wait if they have no key without it. While it cannot be fetched, the
// known keys stay good, however old, so that an outage of the issuer locks no client
// out. A set that was fetched and has no usable key revokes all keys. A keySet is safe for
// concurrent use and has no goroutine.
type keySet struct {
	url    string
	client *http.Client
	log    *slog.Logger
	now    func() time.Time

	mu       sync.Mutex
	keys     []namedKey
	tried    time.Time     // when the last fetch began
	err      error         // of the last fetch
	fetching chan struct{} // closed when the current fetch has ended; nil: no fetch is under way
}

// namedKey is a key of a set.
type namedKey struct {
	id, algorithm string
	key           any
}

func newKeySet(url string, log *slog.Logger, now func() time.Time) *keySet {
	return &keySet{
		url: url, log: log, now: now,
		client: &http.Client{
			Timeout: keySetTimeout,
			// It fetches once in minutes: a connection that is kept is no use.
			Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			// Only the operator chooses the URL of the keys.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// find returns a key. A token without a key ID fits the only key of its algorithm.
func (s *keySet) find(ctx context.Context, algorithm, id string) (any, error) {
	for first := true; ; first = false {
		s.mu.Lock()
		key := s.known(algorithm, id)
		since := s.now().Sub(s.tried)
		switch {
		case s.fetching == nil && (s.tried.IsZero() || since >= keySetAge || key == nil && since >= keySetPause) && first:
			done := make(chan struct{})
			s.fetching, s.tried = done, s.now()
			s.mu.Unlock()
			s.fetch(ctx, done)
		case key != nil:
			s.mu.Unlock()
			return key, nil
		case s.fetching != nil:
			done := s.fetching
			s.mu.Unlock()
			select {
			case <-done:
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
			}
		default:
			err := s.err
			s.mu.Unlock()
			if err != nil {
				return nil, err
			}
			return nil, ErrUnknownKey
		}
	}
}

// known returns a key, or nil. The lock is held.
func (s *keySet) known(algorithm, id string) any {
	var found any
	for _, k := range s.keys {
		switch {
		case k.algorithm != algorithm || id != "" && k.id != id:
		case found != nil && !reflect.DeepEqual(found, k.key):
			return nil // it is unknown which of them is meant
		default:
			found = k.key
		}
	}
	return found
}

// fetch fetches the set for all callers; so it does not end with the ctx of one request.
func (s *keySet) fetch(ctx context.Context, done chan struct{}) {
	keys, err := s.get(context.WithoutCancel(ctx))
	if err != nil {
		s.log.Warn("the key set of --jwt-jwks-url cannot be used", "error", err)
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil || errors.Is(err, errNoKey) {
		s.keys = keys
	}
	s.fetching = nil
	close(done)
}

func (s *keySet) get(ctx context.Context) ([]namedKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := s.client.Do(req)
	if asked, ok := errors.AsType[*url.Error](err); ok {
		return nil, asked.Err // without the URL, in which there may be a key
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it is answered with %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySetBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxKeySetBytes:
		return nil, fmt.Errorf("it has more than %d bytes", maxKeySetBytes)
	}
	return parseKeySet(body)
}

// jwk is a key of a set, as far as it matters here (RFC 7517, section 4, RFC 7518,
// section 6, and RFC 8037, section 2).
type jwk struct {
	Kind       string   `json:"kty"`
	ID         string   `json:"kid"`
	Use        string   `json:"use"`
	Operations []string `json:"key_ops"`
	Algorithm  string   `json:"alg"`
	Curve      string   `json:"crv"`
	X          string   `json:"x"`
	Y          string   `json:"y"`
	N          string   `json:"n"`
	E          string   `json:"e"`
}

// errNoKey is returned for a set without a key that checks signatures.
var errNoKey = errors.New("it has no key for RS256, ES256 or EdDSA, so that all tokens are refused")

// parseKeySet returns the keys of a set that check signatures. Keys of other kinds and
// for other uses are left out, as RFC 7517, section 5, wants it, and so are those that
// are broken or too weak: one of them must not make the others useless.
func parseKeySet(data []byte) ([]namedKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("it is no key set: %w", err)
	}
	if set.Keys == nil {
		return nil, errors.New("it is no key set: it has no member keys")
	}
	var all []namedKey
	for _, text := range set.Keys {
		var k jwk
		if json.Unmarshal(text, &k) != nil || k.Use != "" && k.Use != "sig" || len(k.Operations) > 0 && !slices.Contains(k.Operations, "verify") {
			continue
		}
		key, err := k.public()
		if err != nil {
			continue
		}
		algorithm, err := algorithmOf(key)
		if err != nil || k.Algorithm != "" && k.Algorithm != algorithm {
			continue
		}
		all = append(all, namedKey{k.ID, algorithm, key})
	}
	if len(all) == 0 {
		return nil, errNoKey
	}
	return all, nil
}

func (k jwk) public() (any, error) {
	switch {
	case k.Kind == "RSA":
		n, errN := base64.RawURLEncoding.DecodeString(k.N)
		e, errE := base64.RawURLEncoding.DecodeString(k.E)
		exponent := new(big.Int).SetBytes(e)
		if errN != nil || errE != nil || !exponent.IsInt64() || exponent.Int64() < 3 || exponent.Int64() > 1<<31-1 || exponent.Bit(0) == 0 {
			return nil, errors.New("not an RSA key")
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent.Int64())}, nil
	case k.Kind == "EC" && k.Curve == "P-256":
		x, errX := base64.RawURLEncoding.DecodeString(k.X)
		y, errY := base64.RawURLEncoding.DecodeString(k.Y)
		if errX != nil || errY != nil || len(x) != 32 || len(y) != 32 {
			return nil, errors.New("not a point")
		}
		return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
	case k.Kind == "OKP" && k.Curve == "Ed25519":
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("not an Ed25519 key")
		}
		return ed25519.PublicKey(x), nil
	default:
		return nil, fmt.Errorf("keys of the kind %q are not known", k.Kind)
	}
}
