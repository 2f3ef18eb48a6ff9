package event

import "strings"

// MaxKeyLen is the longest idempotency key, in bytes.
const MaxKeyLen = 256

// ValidKey reports whether a text may be an idempotency key: 1 to 256 visible ASCII
// characters or spaces.
func ValidKey(key string) bool {
	return key != "" && len(key) <= MaxKeyLen && PrintableASCII(key)
}

// PrintableASCII reports whether a text has visible ASCII characters and spaces only.
func PrintableASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 || r > 0x7e })
}
