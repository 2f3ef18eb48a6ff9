package janitor

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// sessionInfo is a session as HTTP shows it. Times of events are whole seconds.
type sessionInfo struct {
	Session string        `json:"session"`
	State   session.State `json:"state"`
	// Created is absent for a session that is in the log and not in the index.
	Created  time.Time       `json:"created,omitzero"`
	Ended    time.Time       `json:"ended,omitzero"`
	Owner    string          `json:"owner,omitempty"`
	Members  []string        `json:"members,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	// Streams counts those with events in the log and those that are closed.
	Streams int `json:"streams"`
	// OpenStreams counts those that have events and are not finished.
	OpenStreams int   `json:"openStreams"`
	Events      int   `json:"events"`
	Bytes       int64 `json:"bytes"`
	// Limits are the session's own, by what its metadata asks for.
	Limits limitsInfo `json:"limits"`
	// Clients are the event streams and polls for it; absent unless asked for.
	Clients *int `json:"clients,omitempty"`
	// Oldest and Newest are when the retained events were stored.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Activity is when the session was created or ended, or its last event stored,
	// whichever was last.
	Activity time.Time `json:"activity,omitzero"`
}

// sessionDetail is the body of GET /v1/sessions/{session}; streams is a list here.
type sessionDetail struct {
	sessionInfo
	Room room `json:"room"`
	// Upcoming is what goes next, the soonest first.
	Upcoming []removalInfo `json:"upcoming"`
	Streams  []streamInfo  `json:"streams"`
}

// limitsInfo are limits of a session; absent are those that there are not.
type limitsInfo struct {
	Events  *int64 `json:"events,omitempty"`
	Bytes   *int64 `json:"bytes,omitempty"`
	Streams *int64 `json:"streams,omitempty"`
}

func (lim limits) info() limitsInfo {
	return limitsInfo{roomFor(lim.maxEvents, 0), roomFor(lim.maxBytes, 0), roomFor(lim.maxStreams, 0)}
}

// room is how much there is up to a limit; negative when there is too much, absent
// when there is no limit.
type room struct {
	Events *int64 `json:"events,omitempty"`
	Bytes  *int64 `json:"bytes,omitempty"`
}

// streamInfo is a stream as HTTP shows it.
type streamInfo struct {
	Stream string `json:"stream"`
	Events int    `json:"events"`
	Bytes  int64  `json:"bytes"`
	// OldestID and NewestID are the event IDs of the oldest and newest retained event.
	OldestID string    `json:"oldestId,omitempty"`
	NewestID string    `json:"newestId,omitempty"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
	// Expires is when the oldest event is as old as the log keeps events.
	Expires time.Time `json:"expires,omitzero"`
	Room    room      `json:"room"`
	Closed  bool      `json:"closed"`

	first, last uint64 // sequences
}

// removalInfo is a removal to come.
type removalInfo struct {
	Reason  Reason `json:"reason"`
	Session string `json:"session,omitempty"`
	// Stream is absent for what is not of one stream.
	Stream  string `json:"stream,omitempty"`
	Entries int    `json:"entries"`
	// UpTo is the event ID of the last one.
	UpTo string `json:"upTo,omitempty"`
	// At is absent for what goes with the next sweep.
	At time.Time `json:"at,omitzero"`

	life string
	last uint64 // sequence of the last one
}

// isOfEvents reports whether what goes are events of one stream.
func (r removalInfo) isOfEvents() bool { return r.Stream != "" }

// expired is the reason of what goes by age, with the floor.
const expired = Reason(eventlog.Expired)

func removalOf(r Removal) removalInfo {
	session, life := event.ParseLifeKey(r.Life)
	return removalInfo{
		Reason: r.Reason, Session: session, Stream: r.Stream, Entries: len(r.Sequences),
		life: life, last: r.Sequences[len(r.Sequences)-1],
	}
}

// idOf returns the event ID of a sequence in a stream of a life.
func (l *ledger) idOf(session, life, stream string, seq uint64) string {
	at := event.Place{Birth: l.birth, Session: session, Life: life, Stream: stream}
	if n := len(l.generations); n > 0 {
		at.Generation = l.generations[n-1].ID
	}
	return event.ID{Stream: stream, Tag: at.Tag(), Sequence: seq}.String()
}

// roomFor returns what a limit leaves; nil without one.
func roomFor(limit, has int64) *int64 {
	if limit < 0 {
		return nil
	}
	left := limit - has
	return &left
}

// streamsOf returns the streams of a session's life, by name: those with events in the
// log and those that have ended.
func (l *ledger) streamsOf(rec session.Record, kept retention) []streamInfo {
	out := []streamInfo{}
	if a := l.accounts[event.LifeKey(rec.Session, rec.Life)]; a != nil {
		for stream, s := range a.streams {
			l.expire(a, s)
			closed := rec.State == session.Closed || a.end(s).seq > 0
			if len(s.events) > 0 || closed {
				out = append(out, streamInfoOf(stream, s, closed, kept))
			}
		}
	}
	slices.SortFunc(out, func(a, b streamInfo) int { return cmp.Compare(a.Stream, b.Stream) })
	return out
}

func streamInfoOf(name string, s *stream, closed bool, kept retention) streamInfo {
	info := streamInfo{Stream: name, Events: len(s.events), Bytes: s.bytes, Closed: closed}
	if kept.maxPerStream > 0 {
		info.Room.Events = roomFor(kept.maxPerStream, int64(len(s.events)))
	}
	n := len(s.events)
	if n == 0 {
		return info
	}
	info.first, info.last = s.events[0].seq, s.events[n-1].seq
	info.Oldest, info.Newest = s.events[0].time(), s.events[n-1].time()
	if kept.maxAge > 0 {
		info.Expires = info.Oldest.Add(kept.maxAge)
	}
	return info
}

// infoOf sums up a session. A session in the log that is not in the index is open.
func (l *ledger) infoOf(rec session.Record, streams []streamInfo, lim limits) sessionInfo {
	info := sessionInfo{
		Session: rec.Session, State: cmp.Or(rec.State, session.Open), Created: rec.Created, Ended: rec.Ended,
		Owner: rec.Owner, Members: rec.Members, Metadata: rec.Metadata, Streams: len(streams), Limits: lim.info(),
	}
	for _, s := range streams {
		info.Events += s.Events
		info.Bytes += s.Bytes
		if s.Events > 0 && (info.Oldest.IsZero() || s.Oldest.Before(info.Oldest)) {
			info.Oldest = s.Oldest
		}
		info.Newest = later(info.Newest, s.Newest)
	}
	info.Activity = later(later(info.Created, info.Ended), info.Newest)
	if a := l.accounts[event.LifeKey(rec.Session, rec.Life)]; a != nil {
		if info.State == session.Open {
			info.OpenStreams = a.open
		}
		if a.last > 0 {
			info.Activity = later(info.Activity, time.Unix(int64(a.last), 0).UTC())
		}
	}
	return info
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// detail is infoOf with what goes next: removals with the next sweep, the rest in time.
func (l *ledger) detail(rec session.Record, streams []streamInfo, removals []Removal, lim limits) sessionDetail {
	d := sessionDetail{sessionInfo: l.infoOf(rec, streams, lim), Upcoming: []removalInfo{}, Streams: streams}
	d.Room = room{roomFor(lim.maxEvents, int64(d.Events)), roomFor(lim.maxBytes, d.Bytes)}
	for _, r := range removals {
		d.Upcoming = append(d.Upcoming, removalOf(r))
	}
	whole := slices.ContainsFunc(removals, func(r Removal) bool { return r.Reason == Closed })
	if !whole && d.Events > 0 {
		d.Upcoming = append(d.Upcoming, d.inTime(lim)...)
	}
	for i := range d.Upcoming {
		n := &d.Upcoming[i]
		n.Session = ""
		if n.isOfEvents() {
			n.UpTo = l.idOf(rec.Session, rec.Life, n.Stream, n.last)
		}
	}
	for i := range d.Streams {
		if s := &d.Streams[i]; s.Events > 0 {
			s.OldestID, s.NewestID = l.idOf(rec.Session, rec.Life, s.Stream, s.first), l.idOf(rec.Session, rec.Life, s.Stream, s.last)
		}
	}
	return d
}

// inTime returns what goes without anything else happening: the oldest event by age,
// and all that is left when the grace of a closed session is over.
func (d *sessionDetail) inTime(lim limits) (next []removalInfo) {
	var oldest *streamInfo
	for i := range d.Streams {
		if s := &d.Streams[i]; !s.Expires.IsZero() && (oldest == nil || s.first < oldest.first) {
			oldest = s
		}
	}
	if oldest != nil {
		next = append(next, removalInfo{Reason: expired, Stream: oldest.Stream, Entries: 1, At: oldest.Expires, last: oldest.first})
	}
	if d.State == session.Closed {
		next = append(next, removalInfo{Reason: Closed, Entries: d.Events, At: d.Ended.Add(lim.closedGrace)})
	}
	slices.SortStableFunc(next, func(a, b removalInfo) int { return a.At.Compare(b.At) })
	return next
}
