package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// event is what is published. Who publishes straight to JetStream checks it before:
// session and stream are 1 to 128 visible ASCII characters, but not ".", ".." or, for a
// session, "*"; data is one JSON-RPC 2.0 message in UTF-8.
type event struct {
	session, stream string
	kind            string // SSE event type; empty: message
	key             string // idempotency key
	data            []byte
}

// message returns what is published, in a log of so many partitions.
//
// A subject that ends with =close or =clear is a marker: the end of a stream, or the
// removal of what came before. Only a close through ingest may write one, since it first
// makes sure that nothing else is under way.
func (e event) message(partitions int) *nats.Msg {
	msg := nats.NewMsg(fmt.Sprintf("mcp.%d.%s.%s", partition(e.session, partitions), token(e.session), token(e.stream)))
	msg.Data = e.data
	msg.Header.Set("Nats-Msg-Id", messageID(e.session, e.stream, e.key, 0))
	if e.kind != "" {
		msg.Header.Set("Rejoin-Type", e.kind) // none of connect, cursor, gap, close, expiring, open, error
	}
	return msg
}

// partition is FNV-1a, 32 bits, of the session's token, modulo the number of partitions.
func partition(session string, partitions int) int {
	hash := uint32(2166136261)
	for _, b := range []byte(token(session)) {
		hash = (hash ^ uint32(b)) * 16777619
	}
	return int(hash % uint32(partitions)) //nolint:gosec // a small positive number
}

// token is a name as a part of a subject: every byte besides letters, digits, "-" and "_"
// is "=" and two upper-case hexadecimal digits.
func token(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// messageID binds a key to its session and stream, as JetStream looks for duplicates in
// the whole partition: SHA-256 of the three, each behind its length, and of the index
// among the events with this key; 16 bytes of it in base64url. So a repetition through
// ingest, with this Idempotency-Key, is found as well. Lengths and index are varints
// (LEB128): below 128, a single byte.
func messageID(session, stream, key string, index uint64) string {
	var b []byte
	for _, s := range []string{session, stream, key} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(binary.AppendUvarint(b, index))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
