package event

import (
	"fmt"
	"strings"
)

// MaxNameLen is the longest session or stream name, in bytes.
const MaxNameLen = 128

// Flow stands, in place of a stream name or its token, for the flow of a whole
// session. As the name of a stream it is legal, and then its token is "=2A".
const Flow = "*"

// CheckSession reports whether name may name a session: 1 to 128 visible ASCII
// characters (0x21–0x7E), but not ".", ".." or "*". The alphabet is that of
// Mcp-Session-Id (MCP 2025-11-25, Streamable HTTP, session management).
// The error wraps [ErrInvalidName].
func CheckSession(name string) error {
	if name == Flow {
		return fmt.Errorf("%w: %q is reserved", ErrInvalidName, name)
	}
	return CheckStream(name)
}

// CheckStream reports whether name may name a stream: the alphabet of a session,
// and "*" is allowed too. The error wraps [ErrInvalidName].
func CheckStream(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > MaxNameLen:
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrInvalidName, len(name), MaxNameLen)
	case name == "." || name == "..":
		return fmt.Errorf("%w: %q is reserved", ErrInvalidName, name)
	}
	for i := range len(name) {
		if c := name[i]; c < 0x21 || c > 0x7e {
			return fmt.Errorf("%w: byte %d is 0x%02x, only visible ASCII (0x21 to 0x7E) is allowed", ErrInvalidName, i, c)
		}
	}
	return nil
}

const upperHex = "0123456789ABCDEF"

// Token encodes a name as a NATS subject token, which is also a legal key of a
// NATS key-value bucket: every byte outside [A-Za-z0-9_-] becomes "=XX" with
// upper-case hexadecimal digits.
func Token(name string) string {
	escapes := 0
	for i := range len(name) {
		if !plain(name[i]) {
			escapes++
		}
	}
	if escapes == 0 {
		return name
	}
	var b strings.Builder
	b.Grow(len(name) + 2*escapes)
	for i := range len(name) {
		c := name[i]
		if plain(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('=')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&15])
	}
	return b.String()
}

// SessionName decodes the token of a session. Only the one token that [Token]
// makes of a legal name is accepted; the error wraps [ErrInvalidToken].
func SessionName(token string) (string, error) {
	name, err := StreamName(token)
	if err == nil && name == Flow {
		return "", fmt.Errorf("%w: %q", ErrInvalidToken, token)
	}
	return name, err
}

// StreamName decodes the token of a stream, as [SessionName] does for a session.
func StreamName(token string) (string, error) {
	name := token
	if strings.Contains(token, "=") {
		var b strings.Builder
		b.Grow(len(token))
		for i := 0; i < len(token); i++ {
			c := token[i]
			if c == '=' && i+2 < len(token) {
				// The index of a byte that is no digit is -1, and makes a byte that no name has.
				c = byte(strings.IndexByte(upperHex, token[i+1])<<4 | strings.IndexByte(upperHex, token[i+2]))
				i += 2
			}
			b.WriteByte(c)
		}
		name = b.String()
	}
	if Token(name) != token {
		return "", fmt.Errorf("%w: %q", ErrInvalidToken, token)
	}
	if err := CheckStream(name); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidToken, err)
	}
	return name, nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
