package janitor

import (
	"slices"
	"time"

	"rejoin/shared/session"
)

// Reason says why the janitor removes entries of the log; its text is a label of
// a metric.
type Reason string

const (
	// SessionEvents means that the session had more events than the log allows it.
	SessionEvents Reason = "session_events"
	// SessionBytes means that the session had more bytes than the log allows it.
	SessionBytes Reason = "session_bytes"
	// SessionStreams means that the session had more open streams than the log allows it.
	SessionStreams Reason = "session_streams"
	// Cleared means that a =clear marker lies behind the events.
	Cleared Reason = "cleared"
	// Closed means that the session has been closed for longer than the grace.
	Closed Reason = "closed"
	// AfterClose means that the events lie behind a =close marker, where edges ignore them.
	AfterClose Reason = "after_close"
	// Superseded means that the entries are markers that have nothing left to say.
	Superseded Reason = "superseded"
	// Stray means that the entries' subjects name no event, or one of another partition.
	Stray Reason = "stray"
)

// urgent reports whether what goes for a reason has to go now. The rest may take a
// minute, and is removed so that publishers do not notice.
func (r Reason) urgent() bool {
	switch r {
	case SessionEvents, SessionBytes, SessionStreams, Cleared:
		return true
	default:
		return false
	}
}

// reasons are all of them.
var reasons = []Reason{SessionEvents, SessionBytes, SessionStreams, Cleared, Closed, AfterClose, Superseded, Stray}

// Removal is a list of entries that have to go.
type Removal struct {
	Reason  Reason
	Session string
	// Stream is empty when Sequences are markers of the session, and for strays.
	Stream string
	// Sequences are in order. Of a stream's events they are the oldest without
	// exception, or, when the reason is AfterClose, the newest.
	Sequences []uint64
}

// limits are what the policy enforces.
type limits struct {
	maxEvents, maxBytes, maxStreams int64 // of one session; negative: none
	// closedGrace is how long the events of a closed session are kept, and for how long
	// those of a finished stream are as good as any.
	closedGrace time.Duration
}

// clearKept is how long a =clear marker is kept at least: it has to reach every
// edge that was tailing when it was written.
const clearKept = time.Minute

// sessionView is what the policy sees of a session. The slices are the ledger's
// own: the policy only reads them.
type sessionView struct {
	name    string
	state   session.State // empty while the session is not registered
	ended   time.Time     // when the registered state last became closing or closed
	exact   bool          // the ledger is exact
	pending bool          // entries of the session are doomed and not deleted yet
	markers *markers
	streams []streamView // by name
}

type streamView struct {
	name    string
	events  []entry
	final   bool // the last event says that it is the last
	markers *markers
}

// policy says what of a session has to go now.
//
// Whatever it takes of a stream's events is the oldest part, except what lies
// behind a =close marker; edges rely on that. The limits of a session count what is
// left after everything else, and are met exactly; see [trimLive]. Markers go in a later round than the events
// that they are about, and a =close marker stays as long as its session lives.
func policy(v sessionView, lim limits, now time.Time) []Removal {
	if v.over(now, lim.closedGrace) {
		return v.finish()
	}
	var out []Removal
	live := make([]run, 0, len(v.streams))
	for _, s := range v.streams {
		cleared := max(v.markers.clearedAt(), s.markers.clearedAt())
		closed := min(v.markers.closedAt(), s.markers.closedAt())
		from, to := 0, len(s.events)
		for from < to && s.events[from].seq <= cleared {
			from++
		}
		for to > from && s.events[to-1].seq > closed {
			to--
		}
		out = appendRemoval(out, Cleared, v.name, s.name, s.events[:from])
		if v.exact {
			out = appendRemoval(out, AfterClose, v.name, s.name, s.events[to:])
		}
		live = append(live, run{stream: s.name, events: s.events[from:to], end: v.ending(s)})
	}
	out = append(out, trimLive(v.name, live, lim, now)...)
	return append(out, v.superseded(now)...)
}

// ending returns where a stream was finished: at a =close marker, or at an event that
// says so and that nothing follows.
func (v sessionView) ending(s streamView) ending {
	end := ending{seq: open}
	if n := len(s.events); s.final && n > 0 {
		end = ending{s.events[n-1].seq, s.events[n-1].time()}
	}
	for _, m := range []*markers{v.markers, s.markers} {
		if m.closedAt() < end.seq {
			end = ending{m.closes[0].seq, m.closes[0].at}
		}
	}
	if end.seq == open {
		return ending{}
	}
	return end
}

// over reports whether the session has been closed for longer than the grace. One
// that has a =close marker but no record any more counts from the marker on.
func (v sessionView) over(now time.Time, grace time.Duration) bool {
	switch {
	case v.state == session.Closed:
		return now.Sub(v.ended) >= grace
	case v.state == "" && v.markers != nil && len(v.markers.closes) > 0:
		return now.Sub(v.markers.closes[0].at) >= grace
	default:
		return false
	}
}

// finish removes all of a session: the events, and when they are gone the markers.
func (v sessionView) finish() []Removal {
	var out []Removal
	for _, s := range v.streams {
		out = appendRemoval(out, Closed, v.name, s.name, s.events)
	}
	if len(out) > 0 || v.pending {
		return out
	}
	all := func(m *markers) []uint64 {
		if m == nil {
			return nil
		}
		return sequencesOf(slices.Concat(m.closes, m.clears))
	}
	out = appendMarkers(out, v.name, "", all(v.markers))
	for _, s := range v.streams {
		out = appendMarkers(out, v.name, s.name, all(s.markers))
	}
	return out
}

// superseded returns the markers that have nothing left to say: every =close
// marker but the first, every =clear marker but the last, and that one too when it
// has been there for a while and nothing lies before it any more.
func (v sessionView) superseded(now time.Time) []Removal {
	var out []Removal
	oldest := open
	for _, s := range v.streams {
		if len(s.events) > 0 {
			oldest = min(oldest, s.events[0].seq)
		}
	}
	out = appendMarkers(out, v.name, "", v.useless(v.markers, oldest, 0, now))
	for _, s := range v.streams {
		oldest := open
		if len(s.events) > 0 {
			oldest = s.events[0].seq
		}
		out = appendMarkers(out, v.name, s.name, v.useless(s.markers, oldest, v.markers.clearedAt(), now))
	}
	return out
}

// useless returns the superseded ones of some markers, given the oldest event they
// could be about and the last =clear marker that includes theirs.
func (v sessionView) useless(m *markers, oldest, wider uint64, now time.Time) []uint64 {
	if m == nil {
		return nil
	}
	var gone []marker
	if len(m.closes) > 1 {
		gone = append(gone, m.closes[1:]...)
	}
	if n := len(m.clears); n > 0 {
		gone = append(gone, m.clears[:n-1]...)
		last := m.clears[n-1]
		done := oldest > last.seq && !v.pending && now.Sub(last.at) >= clearKept
		if done || wider > last.seq {
			gone = append(gone, last)
		}
	}
	return sequencesOf(gone)
}

func sequencesOf(ms []marker) []uint64 {
	all := make([]uint64, 0, len(ms))
	for _, m := range ms {
		all = append(all, m.seq)
	}
	slices.Sort(all)
	return all
}

func appendMarkers(out []Removal, session, stream string, sequences []uint64) []Removal {
	if len(sequences) == 0 {
		return out
	}
	return append(out, Removal{Superseded, session, stream, sequences})
}

func appendRemoval(out []Removal, reason Reason, session, stream string, events []entry) []Removal {
	if len(events) == 0 {
		return out
	}
	return append(out, Removal{reason, session, stream, sequencesOfEvents(events)})
}

func sequencesOfEvents(events []entry) []uint64 {
	all := make([]uint64, len(events))
	for i, e := range events {
		all[i] = e.seq
	}
	return all
}
