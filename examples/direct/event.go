package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/nats-io/nats.go"
)

// event is an event to publish. A program that publishes straight to JetStream checks it
// before: session and stream are 1 to 128 visible ASCII characters, but not ".", ".." or,
// for a session, "*"; data is one JSON value in UTF-8.
type event struct {
	session, stream string
	kind            string // SSE event type; empty: message
	key             string // idempotency key
	data            []byte
}

// subject returns a subject of a life of the event's session.
func (e event) subject(partitions int, life, rest string) string {
	return fmt.Sprintf("mcp.%d.%s.%s.%s", partition(e.session, partitions), token(e.session), life, rest)
}

// message returns the message that stores the event in a life of its session.
func (e event) message(partitions int, life string) *nats.Msg {
	msg := nats.NewMsg(e.subject(partitions, life, token(e.stream)))
	msg.Data = e.data
	fence(msg, e.subject(partitions, life, "=end."+token(e.stream)))
	msg.Header.Set("Nats-Msg-Id", messageID(e.session, life, e.stream, e.key, 0))
	if e.kind != "" {
		msg.Header.Set("Rejoin-Type", e.kind) // none of connect, cursor, gap, close, expiring, open, error
	}
	return msg
}

// birth returns the message to store before the first event of the stream: it names the
// stream, so that the end of the session ends it too.
func (e event) birth(partitions int, life string) *nats.Msg {
	msg := nats.NewMsg(e.subject(partitions, life, "=birth."+token(e.stream)))
	fence(msg, e.subject(partitions, life, "=seal"))
	return msg
}

// fence makes JetStream refuse the message as soon as a subject has an entry.
func fence(msg *nats.Msg, subject string) {
	msg.Header.Set("Nats-Expected-Last-Subject-Sequence", "0")
	msg.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", subject)
}

// partition is the CRC-32 of the session's name, modulo the number of partitions.
func partition(session string, partitions int) int {
	return int(crc32.ChecksumIEEE([]byte(session)) % uint32(partitions)) //nolint:gosec // a small positive number
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

// messageID binds a key to its session, life and stream, as JetStream looks for duplicates
// in the whole partition: SHA-256 of the four, each after its length, and of the index
// among the events with this key; 16 bytes of it in base64url. So a repetition through
// ingest, with this Idempotency-Key, is found as well. Lengths and index are varints
// (LEB128): below 128, a single byte.
func messageID(session, life, stream, key string, index uint64) string {
	var b []byte
	for _, s := range []string{session, life, stream, key} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	sum := sha256.Sum256(binary.AppendUvarint(b, index))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
