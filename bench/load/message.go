package load

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// MessageBytes is the size of a message, unless a case says otherwise.
const MessageBytes = 512

// Stamped returns message n as it is sent now, padded to size bytes.
func Stamped(n, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), `{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d,"t":%d,"pad":"`, n, time.Now().UnixNano())
	for len(b) < size-3 {
		b = append(b, 'x')
	}
	return append(b, `"}}`...)
}

// Varied is stamped with padding that does not compress: a store that compresses its
// blocks would otherwise hold next to nothing.
func Varied(n, stream int) []byte {
	b := Stamped(n, MessageBytes)
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	state := uint64(n)*10_000 + uint64(stream) + 1 //nolint:gosec // positive
	for i := padAt; i < len(b)-3; i++ {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		b[i] = letters[state>>58]
	}
	return b
}

// padAt is where the padding of a message surely has begun.
const padAt = 120

// member returns the number after a key, which lies early in the block.
func member(block []byte, key string) (int64, error) {
	head := block[:min(len(block), memberWithin)]
	i := bytes.Index(head, []byte(key))
	if i < 0 {
		return 0, fmt.Errorf("no %s in %.100q", key, block)
	}
	rest := head[i+len(key):]
	end := bytes.IndexByte(rest, ',')
	if end < 0 {
		return 0, fmt.Errorf("no number after %s in %.100q", key, block)
	}
	return decimal(rest[:end])
}

// SentAt returns when a message was sent, in nanoseconds. Any other text may stand around it.
func SentAt(message []byte) (int64, error) { return member(message, `"t":`) }

// memberWithin is how far into a block a member is looked for.
const memberWithin = 220

var errNoNumber = errors.New("no number")

// decimal reads a number of at most 19 digits that is not negative.
func decimal(b []byte) (int64, error) {
	var v int64
	if len(b) == 0 || len(b) > 19 {
		return 0, fmt.Errorf("%w: %q", errNoNumber, b)
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: %q", errNoNumber, b)
		}
		v = v*10 + int64(c-'0')
	}
	return v, nil
}
