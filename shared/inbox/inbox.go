// Package inbox names the subjects on which the answers to requests arrive on NATS, and
// recognizes them.
package inbox

import (
	"strings"

	"rejoin/shared/event"
)

// Prefix returns the prefix of the inboxes of a service or command: each has its own, so
// that NATS can keep its answers from the others.
func Prefix(name string) string { return "_INBOX_" + event.Token(name) }

// Is reports whether the reply subject of a request is an inbox: one of a service's, of any
// other NATS client's, or the one by which NATS replaces an inbox of another account
// (a service import). A service that answers requests must check, since NATS lets a request name
// any subject: an answer to a subject of the log would be stored there, with the rights of that
// service.
func Is(reply string) bool {
	return strings.HasPrefix(reply, "_INBOX.") || strings.HasPrefix(reply, "_INBOX_") || strings.HasPrefix(reply, "_R_.")
}
