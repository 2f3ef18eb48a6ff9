package edge

import "rejoin/shared/marks"

// Reason says why events are missing behind a cursor.
type Reason string

// The reasons of a gap.
const (
	// ReasonUnknown: the ID cannot be read, or belongs to another stream, session or log.
	ReasonUnknown Reason = "unknown"
	// ReasonExpired: the events were older than the log retains.
	ReasonExpired Reason = "expired"
	// ReasonTrimmed: the stream or session had too many events or bytes.
	ReasonTrimmed Reason = "trimmed"
	// ReasonCleared: somebody cleared the stream or session.
	ReasonCleared Reason = "cleared"
	// ReasonRolledBack: the log has lost the events that the ID stands behind.
	ReasonRolledBack Reason = "rolled_back"
)

// reasonOf names a removal by the janitor's word for it.
func reasonOf(r marks.Reason) Reason {
	switch r {
	case marks.Trimmed:
		return ReasonTrimmed
	case marks.Cleared:
		return ReasonCleared
	case marks.Expired:
		return ReasonExpired
	default:
		return ReasonExpired
	}
}

// gap is what a reader found missing.
type gap struct {
	reason  Reason
	certain bool
	// stream is whose events are missing; empty for a whole session's flow.
	stream string
	// requested is the cursor that the missing events should have followed, as text.
	requested string
}
