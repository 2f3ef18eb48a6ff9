package auth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// The algorithms that tokens may be signed with (RFC 7518, section 3.1, and RFC 8037).
const (
	algHS256 = "HS256"
	algRS256 = "RS256"
	algES256 = "ES256"
	algEdDSA = "EdDSA"
)

const (
	// minSecretLen is the shortest secret, in bytes (RFC 7518, section 3.2).
	minSecretLen = 32

	// Sizes of RSA keys, in bits (RFC 7518, section 3.3). Larger ones only cost time.
	minRSABits = 2048
	maxRSABits = 8192
)

// one returns a finder of a single key, which ignores the token's key ID.
func one(key any) finder {
	return func(context.Context, string, string) (any, error) { return key, nil }
}

// ReadSecret reads the shared secret of HS256 from a file, without the white space
// around it. An error is one sentence for the user that names --jwt-secret-file.
func ReadSecret(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the file of --jwt-secret-file cannot be read: %w", err)
	}
	secret := bytes.TrimSpace(data)
	switch {
	case bytes.Contains(secret, []byte("-----BEGIN ")):
		// A public key would be the secret.
		return nil, fmt.Errorf("%s holds a PEM key and no secret; name it with --jwt-key-file", path)
	case len(secret) < minSecretLen:
		return nil, fmt.Errorf("the secret in %s has %d bytes and needs at least %d; make one with: head -c 32 /dev/urandom | base64", path, len(secret), minSecretLen)
	}
	return secret, nil
}

// readPublicKey reads a public key in PEM, and returns its algorithm. An
// error is one sentence for the user.
func readPublicKey(path string) (key any, algorithm string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("the file of --jwt-key-file cannot be read: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, "", fmt.Errorf("%s holds no PEM block; --jwt-key-file takes a public key, beginning with -----BEGIN PUBLIC KEY-----", path)
	}
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return nil, "", fmt.Errorf("%s holds a %s; --jwt-key-file takes a PUBLIC KEY, and a private one has no business here", path, block.Type)
	}
	if err != nil {
		return nil, "", fmt.Errorf("the public key in %s cannot be read: %w", path, err)
	}
	if algorithm, err = algorithmOf(key); err != nil {
		return nil, "", fmt.Errorf("the public key in %s is of no use: %w", path, err)
	}
	return key, algorithm, nil
}

// algorithmOf returns the one algorithm of a public key.
func algorithmOf(key any) (string, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return "", fmt.Errorf("an RSA key of %d bits; from %d to %d are needed", bits, minRSABits, maxRSABits)
		}
		return algRS256, nil
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return "", fmt.Errorf("a key on the curve %s; ES256 needs P-256", k.Curve.Params().Name)
		}
		return algES256, nil
	case ed25519.PublicKey:
		return algEdDSA, nil
	default:
		return "", fmt.Errorf("a key of the kind %T; RSA, P-256 and Ed25519 are known", key)
	}
}
