package eventlog

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/tracing"
)

// headerPrefix begins the names of all headers of Rejoin.
const headerPrefix = "Rejoin-"

// Headers of an event in the log.
const (
	// HeaderType holds the SSE event type when it is not "message".
	HeaderType = "Rejoin-Type"
	// HeaderFinal marks a stream's last event.
	HeaderFinal = "Rejoin-Final"
	// HeaderIndex holds the publisher's own count of the stream's events.
	HeaderIndex = "Rejoin-Index"
)

// Entry is an event or a control entry as it lies in the log.
type Entry struct {
	// Subject is the parsed RawSubject, when Valid.
	Subject event.Subject
	// RawSubject is the NATS subject, as it is.
	RawSubject string
	// Valid says that RawSubject names an event or control entry of this log and lies in
	// the partition of its session. Of other entries, readers use only Begins and PurgedTo.
	Valid bool
	// Begins is the ID of the generation that begins with this entry, which is of no session; empty
	// in all others.
	Begins string
	// PurgedTo is the sequence up to which an entry of no session announces that the floor moves; 0 in all others.
	PurgedTo uint64
	// Sequence is the entry's sequence in its partition.
	Sequence uint64
	// Time is when the server stored the entry.
	Time time.Time
	// Type is the SSE event type, "message" when the publisher gave none or one
	// that it may not use.
	Type string
	// Final says that this is the stream's last event.
	Final bool
	// Index is the publisher's own count; empty when it has none.
	Index string
	// MessageID is the [MessageID] of an event with an idempotency key; empty without.
	MessageID string
	// Trim is the content of an entry of the kind [event.Trim]; nil when it cannot be read.
	Trim *Trim
	// Again says that this is an opening that was written again.
	Again bool
	// Began is [Opening.Began] of an opening; of an end, the sequence of the end that was stored first: its own
	// Sequence, unless it was written again, and 0 if that is unknown.
	Began uint64
	// Changes is [Opening.Changes] of an opening, also when the tail is headers-only.
	Changes uint64
	// Copy is the content of a birth that was written again; nil in all other entries.
	Copy *BirthCopy
	// Trace is the trace context of the publish; none when it has none.
	Trace tracing.Context
	// Data is the message; nil when the tail is headers-only.
	Data []byte
	// Size is the number of bytes of the message, also when the tail is headers-only.
	Size int
	// Pending is the number of entries after this one when the server sent it; at times too small (docs/upstream/0039).
	Pending uint64
}

// entryFrom reads a message of partition p of a log with so many partitions.
func entryFrom(msg *nats.Msg, meta *nats.MsgMetadata, p, partitions int, headersOnly bool) Entry {
	e := Entry{RawSubject: msg.Subject, Sequence: meta.Sequence.Stream, Time: meta.Timestamp, Pending: meta.NumPending, Data: msg.Data, Size: len(msg.Data)}
	e.fill(msg.Header, p, partitions)
	if headersOnly {
		e.Data, e.Size = nil, sizeHeader(msg.Header)
	}
	return e
}

// sizeHeader reads Nats-Msg-Size. The server appends its own last; a publisher
// may have written one before it.
func sizeHeader(h nats.Header) int {
	values := h["Nats-Msg-Size"]
	if len(values) == 0 {
		return 0
	}
	n, err := strconv.Atoi(values[len(values)-1])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// entryFromRaw is [entryFrom] for the answer to a request.
func entryFromRaw(msg *jetstream.RawStreamMsg, p, partitions int) Entry {
	e := Entry{RawSubject: msg.Subject, Sequence: msg.Sequence, Time: msg.Time, Data: msg.Data, Size: len(msg.Data)}
	e.fill(msg.Header, p, partitions)
	return e
}

// fill sets the fields of an entry of partition p from its subject and headers.
func (e *Entry) fill(h nats.Header, p, partitions int) {
	subject, err := event.ParseSubject(e.RawSubject)
	e.Subject, e.Valid = subject, err == nil && subject.Partition == p && event.Partition(subject.Session, partitions) == p
	if !e.Valid {
		e.Begins, _ = event.ParseGenerationSubject(p, e.RawSubject)
		if e.RawSubject == event.FloorSubject(p) {
			e.PurgedTo, _ = strconv.ParseUint(h.Get(headerUpTo), 10, 64) // one that cannot be read announces nothing
		}
	}
	e.Type = event.DefaultType
	if t := h.Get(HeaderType); t != "" && event.CheckType(t) == nil {
		e.Type = t
	}
	e.Final = h.Get(HeaderFinal) != ""
	e.Index = h.Get(HeaderIndex)
	e.MessageID = h.Get(jetstream.MsgIDHeader)
	e.Trace = tracing.Read(h.Values)
	switch subject.Kind {
	case event.Trim:
		e.Trim = trimIn(subject, h, e.Sequence, e.Time)
	case event.Birth:
		e.Copy = birthCopyIn(h)
	case event.Open:
		e.Again = h.Get(headerAgain) != ""
		e.Began = beganIn(h, e.Sequence)
		e.Changes, _ = strconv.ParseUint(h.Get(headerChanges), 10, 64) // one that cannot be read is no change
	case event.End:
		e.Began = beganIn(h, e.Sequence)
	default:
	}
}

// Headers of a birth, of an opening, and of an end, that was written again. Some names are older than the terms.
const (
	headerAgain         = "Rejoin-Again"
	headerNewest        = "Rejoin-Last"
	headerNewestRemoved = "Rejoin-Trimmed"
	headerThrough       = "Rejoin-Through"
	headerGeneration    = "Rejoin-Generation"
	headerChanges       = "Rejoin-Changes" // of an opening: see [Opening.Changes]
	headerBegan         = "Rejoin-Began"   // of an opening and an end: see [Entry.Began]
)

// Opening is the entry of the log that begins a life of a session.
type Opening struct {
	Session string `json:"-"`
	// Life is part of the subject of every entry of the session from then on.
	Life string `json:"life"`
	// Owner is the session's owner; empty without one.
	Owner string `json:"owner,omitempty"`
	// Members are the subjects, or patterns of subjects, that may use the session besides
	// its owner.
	Members []string `json:"members,omitempty"`
	// Changes is how often Members or Metadata was changed.
	Changes uint64    `json:"changes,omitempty"`
	Created time.Time `json:"created"`
	// Metadata is a JSON object, or nothing.
	Metadata json.RawMessage `json:"metadata,omitempty"`
	// Later are members of the entry that this version does not know; nil for none. Only [Log.Opening] reads them.
	Later map[string]json.RawMessage `json:"-"`
	// Sequence is the opening's sequence in its partition.
	Sequence uint64 `json:"-"`
	// Began is the sequence of the life's first opening: Sequence, unless the opening was written
	// again. 0: unknown, as the log has lost it, or an earlier version wrote it again.
	Began uint64 `json:"-"`
}

// OpeningIn reads an entry of the kind [event.Open]. The error wraps [ErrMismatch].
func OpeningIn(e Entry) (Opening, error) {
	o := Opening{Session: e.Subject.Session, Sequence: e.Sequence, Began: e.Began}
	if err := json.Unmarshal(e.Data, &o); err != nil || o.Life == "" || event.CheckLife(o.Life) != nil {
		return Opening{}, fmt.Errorf("%w: the opening at %d of partition %d cannot be read", ErrMismatch, e.Sequence, e.Subject.Partition)
	}
	return o, nil
}

// laterMembers returns the members of an opening's entry that [Opening] has no field for; nil for none.
func laterMembers(data []byte) map[string]json.RawMessage {
	var later map[string]json.RawMessage
	_ = json.Unmarshal(data, &later) // an object, as OpeningIn has seen
	for _, known := range []string{"life", "owner", "members", "changes", "created", "metadata"} {
		delete(later, known)
	}
	if len(later) == 0 {
		return nil
	}
	return later
}

// encode returns the data that [OpeningIn] reads.
func (o Opening) encode() ([]byte, error) {
	data, err := json.Marshal(o)
	if err != nil || o.Later == nil {
		return data, err
	}
	all := maps.Clone(o.Later)
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// BirthCopy is the state of a stream in a birth that is written again. It can prove that a cursor of a
// quiet stream is complete though all entries around it have expired.
type BirthCopy struct {
	// Newest is the sequence of the stream's newest event; 0 when there was none.
	Newest uint64
	// NewestRemoved is that of the newest event that was removed; 0 for none.
	NewestRemoved uint64
	// Through is the sequence up to which this holds; 0 says that it may be incomplete.
	Through uint64
	// Generation is the ID of the newest one then: a janitor that was held up may store the copy in a later one. It is
	// empty in copies of earlier versions.
	Generation string
}

// Holds reports whether a partition with these generations has lost none of the entries that the copy covers.
func (c *BirthCopy) Holds(gens []event.Generation) bool {
	return c.Generation == "" || event.Fork([]event.Generation{{ID: c.Generation}}, gens) >= max(c.Newest, c.Through)
}

// beganIn returns [Entry.Began] of the opening or end at a sequence.
func beganIn(h nats.Header, sequence uint64) uint64 {
	if h.Get(headerAgain) == "" {
		return sequence
	}
	began, _ := strconv.ParseUint(h.Get(headerBegan), 10, 64) // one that cannot be read is unknown
	return began
}

// setBegan sets the sequence of the first opening or end in one that is written again, if that is known.
func setBegan(msg *nats.Msg, began uint64) {
	if began > 0 {
		msg.Header.Set(headerBegan, strconv.FormatUint(began, 10))
	}
}

// birthCopyIn reads the headers of a birth; nil when it was not written again.
func birthCopyIn(h nats.Header) *BirthCopy {
	c := BirthCopy{Generation: h.Get(headerGeneration)}
	for name, to := range map[string]*uint64{headerNewest: &c.Newest, headerNewestRemoved: &c.NewestRemoved, headerThrough: &c.Through} {
		n, err := strconv.ParseUint(h.Get(name), 10, 64)
		if err != nil {
			return nil
		}
		*to = n
	}
	return &c
}
