package eventlog

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
	"rejoin/shared/tracing"
)

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
	// Subject is what RawSubject says, when Valid.
	Subject event.Subject
	// RawSubject is the NATS subject, as it is.
	RawSubject string
	// Valid says that RawSubject names an event or control entry of this log and lies in
	// the partition of its session. What is not valid is to be ignored.
	Valid bool
	// Begins is the ID of the generation that begins with this entry, which is of no session; empty
	// in all others.
	Begins string
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
	// Trim is what an entry of the kind [event.Trim] says; nil when it cannot be read.
	Trim *Trim
	// Again says that this is an opening that was written again.
	Again bool
	// Began is [Opening.Began] of an opening; of an end, where the end lies or lay that it is a copy of: its
	// Sequence, unless it was written again, and 0 if that is unknown.
	Began uint64
	// Changes is [Opening.Changes] of an opening, also when the tail is headers-only.
	Changes uint64
	// Copy is what a birth says that was written again; nil in all other entries.
	Copy *BirthCopy
	// Trace is the trace context of the publish; none when it has none.
	Trace tracing.Context
	// Data is the message; nil when the tail is headers-only.
	Data []byte
	// Size is the number of bytes of the message, also when the tail is headers-only.
	Size int
	// Pending is the number of entries after this one when the server sent it.
	Pending uint64
}

func (l *Log) entryFrom(msg *nats.Msg, meta *nats.MsgMetadata, p int, headersOnly bool) Entry {
	e := Entry{RawSubject: msg.Subject, Sequence: meta.Sequence.Stream, Time: meta.Timestamp, Pending: meta.NumPending, Data: msg.Data, Size: len(msg.Data)}
	l.fill(&e, msg.Header, p)
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

func (l *Log) entryFromRaw(msg *jetstream.RawStreamMsg, p int) Entry {
	e := Entry{RawSubject: msg.Subject, Sequence: msg.Sequence, Time: msg.Time, Data: msg.Data, Size: len(msg.Data)}
	l.fill(&e, msg.Header, p)
	return e
}

// fill says of an entry of partition p what its subject and headers do.
func (l *Log) fill(e *Entry, h nats.Header, p int) {
	subject, err := event.ParseSubject(e.RawSubject)
	e.Subject, e.Valid = subject, err == nil && subject.Partition == p && l.Partition(subject.Session) == p
	if !e.Valid {
		e.Begins, _ = event.ParseGenerationSubject(p, e.RawSubject)
	}
	e.Type = event.DefaultType
	if t := h.Get(HeaderType); t != "" && event.CheckType(t) == nil {
		e.Type = t
	}
	e.Final = h.Get(HeaderFinal) != ""
	e.Index = h.Get(HeaderIndex)
	e.Trace = tracing.Read(h.Values)
	switch subject.Kind {
	case event.Trim:
		e.Trim = trimIn(subject, h, e.Sequence, e.Time)
	case event.Birth:
		e.Copy = birthCopyIn(h)
	case event.Open:
		e.Again = h.Get(headerAgain) != ""
		e.Began = beganIn(h, e.Sequence)
		e.Changes, _ = strconv.ParseUint(h.Get(headerChanges), 10, 64) // what cannot be read is no change
	case event.End:
		e.Began = beganIn(h, e.Sequence)
	default:
	}
}

// Headers of a birth, of an opening, and of an end, that was written again.
const (
	headerAgain       = "Rejoin-Again"
	headerLast        = "Rejoin-Last"
	headerCopyRemoved = "Rejoin-Trimmed"
	headerThrough     = "Rejoin-Through"
	headerChanges     = "Rejoin-Changes" // of an opening: see [Opening.Changes]
	headerBegan       = "Rejoin-Began"   // of an opening and an end: see [Entry.Began]
)

// BirthCopy is what a birth says of its stream when it is written again. It lets a cursor of a quiet
// stream be complete though everything around it has expired.
type BirthCopy struct {
	// Last is the sequence of the stream's newest event; 0 when there was none.
	Last uint64
	// Removed is the sequence of the stream's newest event that was removed; 0 for none.
	Removed uint64
	// Through is the sequence up to which this holds; 0 says that it may not be all.
	Through uint64
}

// Rewrite stores a control entry again, which lies at a sequence, so that what lies below may
// be removed: an opening while it is the newest of its name, which the error [ErrConflict] denies.
// c is nil but for births. Other errors are those of [Log.Publish], or for an opening wrap [ErrNotFound]. Only
// the acting janitor calls it.
func (l *Log) Rewrite(ctx context.Context, s event.Subject, sequence uint64, c *BirthCopy) (Ack, error) {
	msg := nats.NewMsg(s.String())
	if c != nil {
		msg.Header.Set(headerLast, strconv.FormatUint(c.Last, 10))
		msg.Header.Set(headerCopyRemoved, strconv.FormatUint(c.Removed, 10))
		msg.Header.Set(headerThrough, strconv.FormatUint(c.Through, 10))
	}
	if err := l.writable(ctx, s.Partition); err != nil {
		return Ack{}, err
	}
	if s.Kind == event.Open || s.Kind == event.End {
		msg.Header.Set(headerAgain, "1")
		there, err := l.get(ctx, s.Partition, sequence)
		switch {
		case err == nil:
			msg.Data = there.Data
			if changes := there.Header.Get(headerChanges); changes != "" {
				msg.Header.Set(headerChanges, changes)
			}
			setBegan(msg, beganIn(there.Header, sequence))
		case s.Kind == event.Open || !errors.Is(err, ErrNotFound): // an end that is damaged is still one
			return Ack{}, err
		}
	}
	if s.Kind == event.Open {
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(sequence, 10))
	}
	return l.publish(ctx, s.Partition, msg)
}

// beganIn returns [Entry.Began] of the opening or end at a sequence.
func beganIn(h nats.Header, sequence uint64) uint64 {
	if h.Get(headerAgain) == "" {
		return sequence
	}
	began, _ := strconv.ParseUint(h.Get(headerBegan), 10, 64) // what cannot be read is unknown
	return began
}

// setBegan has an opening or an end that is written again say where the first one lay, if that is known.
func setBegan(msg *nats.Msg, began uint64) {
	if began > 0 {
		msg.Header.Set(headerBegan, strconv.FormatUint(began, 10))
	}
}

// birthCopyIn reads the headers of a birth; nil when it was not written again.
func birthCopyIn(h nats.Header) *BirthCopy {
	var c BirthCopy
	for name, to := range map[string]*uint64{headerLast: &c.Last, headerCopyRemoved: &c.Removed, headerThrough: &c.Through} {
		n, err := strconv.ParseUint(h.Get(name), 10, 64)
		if err != nil {
			return nil
		}
		*to = n
	}
	return &c
}
