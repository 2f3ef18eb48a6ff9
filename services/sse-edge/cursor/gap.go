package cursor

import "rejoin/shared/eventlog"

// GapReason says why events are missing after a cursor.
type GapReason string

// The reasons of a gap.
const (
	// ReasonUnknown: the ID cannot be read, or belongs to another stream, session or log; or the log has
	// forgotten the life that is read, since the session's name has a later one: then it is not certain.
	ReasonUnknown GapReason = "unknown"
	// ReasonExpired: the events were older than the log retains, or the oldest of a full partition, or the log
	// no longer has the reason of their removal.
	ReasonExpired GapReason = "expired"
	// ReasonTrimmed: the stream or session had too many events, bytes or open streams, or the session was closed
	// for longer than --closed-grace.
	ReasonTrimmed GapReason = "trimmed"
	// ReasonCleared: the stream or session was cleared.
	ReasonCleared GapReason = "cleared"
	// ReasonRolledBack: the log has lost the event that the ID names.
	ReasonRolledBack GapReason = "rolled_back"
	// ReasonDamaged: entries of the log are missing that neither floor nor trim explains.
	ReasonDamaged GapReason = "damaged"
)

// reasonOf names a removal by the log's word for it.
func reasonOf(r eventlog.Reason) GapReason {
	if r == eventlog.Trimmed || r == eventlog.Cleared {
		return GapReason(r)
	}
	return ReasonExpired
}

// Gap reports events that a reader found missing.
type Gap struct {
	Reason  GapReason
	Certain bool
	// Unchecked says that no janitor has checked the log yet: perhaps nothing is missing, and a client that
	// resumes later may learn that.
	Unchecked bool
	// Session and ResumesAt, the event ID where its place continues, are set in a [Group].
	Session, ResumesAt string
	// Stream is the stream whose events are missing; empty for a whole session's flow.
	Stream string
	// Requested is the cursor that the missing events should have followed, as text.
	Requested string
}
