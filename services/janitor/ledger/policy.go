package ledger

import (
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// Cause is the reason for which the janitor removes events; its text is a label of a metric.
type Cause string

const (
	// StreamEvents means that the stream had more events than the log allows it.
	StreamEvents Cause = "stream_events"
	// SessionEvents means that the session had more events than the log allows it.
	SessionEvents Cause = "session_events"
	// SessionBytes means that the session had more bytes than the log allows it.
	SessionBytes Cause = "session_bytes"
	// SessionStreams means that the session had more open streams than the log allows it.
	SessionStreams Cause = "session_streams"
	// Cleared means that a =clear marker lies after the events.
	Cleared Cause = "cleared"
	// Closed means that the events' life has been over for longer than the grace.
	Closed Cause = "closed"
)

// Causes lists every Cause.
var Causes = []Cause{StreamEvents, SessionEvents, SessionBytes, SessionStreams, Cleared, Closed}

// announced returns the reason that readers receive.
func (c Cause) announced() eventlog.Reason {
	if c == Cleared {
		return eventlog.Cleared
	}
	return eventlog.Trimmed
}

// Removal is a list of events of a stream that have to be removed.
type Removal struct {
	Cause  Cause
	Life   string // as [event.LifeKey] has it
	Stream string
	// Sequences are in order. Of the stream's events they are the oldest without exception, but
	// for those of the removals before.
	Sequences []uint64
}

// Limits are the limits that the policy enforces.
//
// Events of finished streams are removed first only when these have been finished for as long as events of
// a closed session are kept, so that a client that was disconnected for a moment still gets the end of
// an answer.
type Limits struct {
	MaxPerStream                    int64 // events of one stream; negative: none
	MaxEvents, MaxBytes, MaxStreams int64 // of one session; negative: none
	// ClosedGrace is how long the events of a life that is over are kept, and for how long
	// those of a finished stream are as good as any.
	ClosedGrace time.Duration
}

// LifeState is the state of a life as a whole, according to the log.
type LifeState struct {
	session, life string
	opening       *Opening // the newest of the session's name; nil when there is none
	markers       *markers
}

// PastGrace reports whether the life has been over for longer than the grace. A life that is sealed
// and has no end is not over: its streams take events until the registrar has ended it.
func (s LifeState) PastGrace(now time.Time, grace time.Duration) bool {
	var since time.Time
	switch {
	case s.markers.ended():
		since = s.markers.end.at
	case s.opening != nil && s.life == "": // an opening ends it, and it has no fence
		since = s.opening.at
	default:
		return false
	}
	return now.Sub(since) >= grace
}

// LifeView is the policy's view of a life. The slices are the ledger's own: the policy
// only reads them.
type LifeView struct {
	LifeState
	streams []streamView // by name
}

type streamView struct {
	name    string
	events  []entry
	final   bool   // the last event is a final event
	cleared uint64 // the sequence of its last =clear marker
	end     marker // see [Account.end]
}

// ending returns the entry that finished the stream: a final event that no other event
// follows, or its end. The zero marker means that it is open.
func (s streamView) ending() marker {
	if n := len(s.events); s.final && n > 0 {
		last := s.events[n-1]
		return marker{last.seq, last.seq, last.time()}
	}
	return s.end
}

func (v LifeView) key() string { return event.LifeKey(v.session, v.life) }

// Policy returns the removals that a life needs now. They always take the oldest events of a stream,
// and those of one stream are in order.
//
// The limits count the events that all other removals leave, and are met exactly; see [trimLive].
func Policy(v LifeView, lim Limits, now time.Time) []Removal {
	var out []Removal
	if v.PastGrace(now, lim.ClosedGrace) {
		for _, s := range v.streams {
			out = appendRemoval(out, Closed, v.key(), s.name, s.events)
		}
		return out
	}
	live := make([]run, 0, len(v.streams))
	for _, s := range v.streams {
		cleared := max(v.markers.clearedAt(), s.cleared)
		from := 0
		for from < len(s.events) && s.events[from].seq <= cleared {
			from++
		}
		out = appendRemoval(out, Cleared, v.key(), s.name, s.events[:from])
		left := s.events[from:]
		if tooMany := int64(len(left)) - lim.MaxPerStream; lim.MaxPerStream >= 0 && tooMany > 0 {
			out = appendRemoval(out, StreamEvents, v.key(), s.name, left[:tooMany])
			left = left[tooMany:]
		}
		live = append(live, run{stream: s.name, events: left, end: s.ending()})
	}
	return append(out, trimLive(v.key(), live, lim, now)...)
}

func appendRemoval(out []Removal, cause Cause, life, stream string, events []entry) []Removal {
	if len(events) == 0 {
		return out
	}
	return append(out, Removal{cause, life, stream, sequencesOfEvents(events)})
}

func sequencesOfEvents(events []entry) []uint64 {
	all := make([]uint64, len(events))
	for i, e := range events {
		all[i] = e.seq
	}
	return all
}
