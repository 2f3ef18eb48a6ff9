package session

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// State is whether a session takes messages.
type State string

const (
	// Open takes messages.
	Open State = "open"
	// Closed takes no messages: its life is sealed in the log. The record is a tombstone.
	Closed State = "closed"
)

// Record is the registry's record of a session: the state of the session in the log when the
// record was written.
type Record struct {
	Session string `json:"session"`
	// Life tells this use of the name from earlier ones; it is part of the subject of
	// everything that belongs to the session.
	Life  string `json:"life,omitempty"`
	State State  `json:"state"`
	// Created is when the session was opened.
	Created time.Time `json:"created"`
	// Ended is when the session was sealed; zero while it is open.
	Ended time.Time `json:"ended,omitzero"`
	// Owner is the subject that the session belongs to; fixed at creation.
	Owner string `json:"owner,omitempty"`
	// Members are the subjects, or patterns of subjects, that may use the session besides
	// Owner. It is not changed after it was made: copies share it.
	Members []string `json:"members,omitempty"`
	// Changes is how often Members or Metadata was changed.
	Changes uint64 `json:"changes,omitempty"`
	// Metadata is the creator's, a JSON object. A copy in memory may lack it: see
	// [WithoutMetadata].
	Metadata json.RawMessage `json:"metadata,omitempty"`

	// Retention has the session's limits from Metadata, as far as this version can read them.
	Retention Retention `json:"-"`
	// JSONRPC is from Metadata: each message of the session is one JSON-RPC 2.0 message.
	JSONRPC bool `json:"-"`
	// Revision is the record's revision in the bucket; zero when it is not stored.
	Revision uint64 `json:"-"`
	// Client is the client for which this process created a session that has no owner; empty for no
	// client in particular, or when another process created it. It is not stored.
	Client string `json:"-"`

	metadataBytes int // of Metadata and Members, as stored; the copy may lack Metadata
}

// New returns the record of a new session.
func New(name, owner string, metadata json.RawMessage, now time.Time) Record {
	r := Record{Session: name, Life: NewLife(), State: Open, Created: now.UTC(), Owner: owner, Metadata: metadata}
	if stored, err := json.Marshal(metadata); err == nil && metadata != nil {
		r.Metadata = stored // without white space, and with some characters escaped
	}
	r.read()
	return r
}

// read sets the fields that follow from the record's other fields.
func (r *Record) read() {
	r.Retention, _ = ParseRetention(r.Metadata)
	r.JSONRPC, _ = ParseMessages(r.Metadata)
	r.metadataBytes = len(r.Metadata) + MembersBytes(r.Members)
}

// MembersBytes returns how many bytes members take as JSON; 0 without members.
func MembersBytes(members []string) int {
	if len(members) == 0 {
		return 0
	}
	stored, _ := json.Marshal(members) // strings always can be marshalled
	return len(stored)
}

// WithMembers returns the record with other members, which must not be changed any more.
func (r Record) WithMembers(members []string) Record {
	r.Members = members
	r.metadataBytes = len(r.Metadata) + MembersBytes(r.Members)
	return r
}

// withMetadata returns the record with other metadata, which must not be changed any more.
func (r Record) withMetadata(metadata json.RawMessage) Record {
	r.Metadata = metadata
	r.read()
	return r
}

// NewLife returns a life that no session has had: 60 random bits.
func NewLife() string { return strings.ToLower(rand.Text()[:12]) }

// fromLog returns the record of a session whose opening is in the log.
func fromLog(o eventlog.Opening) Record {
	r := Record{Session: o.Session, Life: o.Life, State: Open, Created: o.Created, Owner: o.Owner, Members: o.Members, Changes: o.Changes, Metadata: o.Metadata}
	r.read()
	return r
}

// opening returns the entry of the log that opens the session.
func (r Record) opening() eventlog.Opening {
	return eventlog.Opening{Session: r.Session, Life: r.Life, Owner: r.Owner, Members: r.Members, Changes: r.Changes, Created: r.Created, Metadata: r.Metadata}
}

// saysAs reports whether two records have the same content about a session.
func (r Record) saysAs(other Record) bool {
	return r.Life == other.Life && r.State == other.State && r.Owner == other.Owner && r.Changes == other.Changes && slices.Equal(r.Members, other.Members)
}

// key returns the record's key in the bucket: the session's token.
func key(name string) string { return event.Token(name) }

func decode(k string, data []byte, revision uint64) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("the record %q cannot be read: %w", k, err)
	}
	if key(r.Session) != k {
		return Record{}, fmt.Errorf("the record %q is about %q", k, key(r.Session))
	}
	r.Revision = revision
	r.read()
	return r, nil
}
