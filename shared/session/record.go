package session

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"rejoin/shared/event"
)

// State is where a session or stream is in its life.
type State string

const (
	// Open takes messages.
	Open State = "open"
	// Closing takes no more messages; its =close marker is not written yet.
	Closing State = "closing"
	// Closed has its =close marker in the log. The record is a tombstone.
	Closed State = "closed"
)

// Record is what the registry holds of a session, or of a stream of a session that
// is closing or closed (an open stream has no record).
type Record struct {
	Session string `json:"session"`
	// Stream is empty in the record of a session.
	Stream string `json:"stream,omitempty"`
	// Incarnation tells this session from earlier ones of the same name.
	Incarnation string `json:"incarnation,omitempty"`
	State       State  `json:"state"`
	// Created is when the session was registered.
	Created time.Time `json:"created"`
	// Ended is when the state last became closing or closed.
	Ended time.Time `json:"ended,omitzero"`
	// ClosedAt is the sequence of the =close marker, once closed.
	ClosedAt uint64 `json:"closedAt,omitempty"`
	// Clear says that what is closing is to be cleared too, or what is closed was.
	Clear bool `json:"clear,omitempty"`
	// Owner is who created the session; fixed at creation.
	Owner string `json:"owner,omitempty"`
	// Metadata is the creator's, a JSON object.
	Metadata json.RawMessage `json:"metadata,omitempty"`

	// Retention is what Metadata says of the session's limits; nothing when that
	// cannot be read.
	Retention Retention `json:"-"`
	// Revision is the record's revision in the bucket; zero when it is not stored.
	Revision uint64 `json:"-"`
}

// New returns the record of a new session.
func New(name, owner string, metadata json.RawMessage, now time.Time) Record {
	r := Record{Session: name, Incarnation: strings.ToLower(rand.Text()[:12]), State: Open, Created: now.UTC(), Owner: owner, Metadata: metadata}
	r.Retention, _ = ParseRetention(metadata)
	return r
}

// key returns the record's key in the bucket: the session's token, and for a
// stream the stream's token behind a dot, which no token holds.
func key(name, stream string) string {
	if stream == "" {
		return event.Token(name)
	}
	return event.Token(name) + "." + event.Token(stream)
}

func decode(k string, data []byte, revision uint64) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("the record %q cannot be read: %w", k, err)
	}
	if key(r.Session, r.Stream) != k {
		return Record{}, fmt.Errorf("the record %q is about %q", k, key(r.Session, r.Stream))
	}
	r.Revision = revision
	r.Retention, _ = ParseRetention(r.Metadata)
	return r, nil
}
