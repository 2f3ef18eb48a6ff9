package ledger

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// SessionInfo is a session as HTTP shows it. Times of events are whole seconds.
type SessionInfo struct {
	Session string        `json:"session"`
	State   session.State `json:"state"`
	// Created is absent for a session that is in the log and not in the registry.
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
	// Limits are the session's own: its metadata may ask for some.
	Limits LimitsInfo `json:"limits"`
	// Clients are the event streams and polls for it; absent unless asked for.
	Clients *int `json:"clients,omitempty"`
	// Oldest and Newest are when the retained events were stored.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Activity is when the session was created or ended, or its last event stored,
	// whichever was last.
	Activity time.Time `json:"activity,omitzero"`
}

// SessionDetail is the body of GET /v1/sessions/{session}; streams is a list here.
type SessionDetail struct {
	SessionInfo
	// Room is how much is left up to the limits; negative when there is too much.
	Room LimitsInfo `json:"room"`
	// Upcoming are the next removals, the soonest first.
	Upcoming []RemovalInfo `json:"upcoming"`
	// Streams are those with events, and up to maxEmpty of the others; Omitted counts the rest.
	Streams []StreamInfo `json:"streams"`
	Omitted int          `json:"omittedStreams,omitempty"`
}

// maxEmpty is how many closed streams without events are listed: no limit bounds their number.
const maxEmpty = 1000

// LimitsInfo are limits of a session; a limit that is not set is absent.
type LimitsInfo struct {
	Events  *int64 `json:"events,omitempty"`
	Bytes   *int64 `json:"bytes,omitempty"`
	Streams *int64 `json:"streams,omitempty"`
}

// Info returns the limits as the API shows them.
func (lim Limits) Info() LimitsInfo {
	return LimitsInfo{roomFor(lim.MaxEvents, 0), roomFor(lim.MaxBytes, 0), roomFor(lim.MaxStreams, 0)}
}

// StreamInfo is a stream as HTTP shows it.
type StreamInfo struct {
	Stream string `json:"stream"`
	Events int    `json:"events"`
	Bytes  int64  `json:"bytes"`
	// OldestID and NewestID are the event IDs of the oldest and newest retained event.
	OldestID string    `json:"oldestId,omitempty"`
	NewestID string    `json:"newestId,omitempty"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
	// Expires is when the oldest event is as old as the log keeps events.
	Expires time.Time  `json:"expires,omitzero"`
	Room    LimitsInfo `json:"room"`
	Closed  bool       `json:"closed"`

	first, last uint64 // sequences
}

// RemovalInfo is a removal to come.
type RemovalInfo struct {
	Cause   Cause  `json:"reason"`
	Session string `json:"session,omitempty"`
	// Stream is absent for a removal that is not of one stream, and so is UpTo.
	Stream  string `json:"stream,omitempty"`
	Entries int    `json:"entries"`
	// UpTo is the event ID of the last one.
	UpTo string `json:"upTo,omitempty"`
	// At is absent for a removal of the next sweep.
	At time.Time `json:"at,omitzero"`

	Life string `json:"-"`
	Last uint64 `json:"-"` // sequence of the last one
}

// Expired is the cause of removals by age, with the floor.
const Expired = Cause(eventlog.Expired)

// RemovalOf returns a removal as the API shows it.
func RemovalOf(r Removal) RemovalInfo {
	session, life := event.ParseLifeKey(r.Life)
	return RemovalInfo{
		Cause: r.Cause, Session: session, Stream: r.Stream, Entries: len(r.Sequences),
		Life: life, Last: r.Sequences[len(r.Sequences)-1],
	}
}

// ID returns the event ID of a sequence in a stream of a life.
func (l *Ledger) ID(session, life, stream string, seq uint64) string {
	at := event.TagParts{Origin: l.origin, Generation: l.Generation(), Session: session, Life: life, Stream: stream}
	return event.ID{Stream: stream, Tag: at.Tag(), Sequence: seq}.String()
}

// roomFor returns how much is left up to a limit; nil without one.
func roomFor(limit, has int64) *int64 {
	if limit < 0 {
		return nil
	}
	return new(limit - has)
}

// StreamsOf returns the streams of a session's life, by name: those with events in the
// log and those that have ended.
func (l *Ledger) StreamsOf(rec session.Record, settings eventlog.Settings) []StreamInfo {
	out := []StreamInfo{}
	if a := l.Accounts[event.LifeKey(rec.Session, rec.Life)]; a != nil {
		for stream, s := range a.Streams {
			l.expire(a, s)
			closed := rec.State == session.Closed || a.end(s).seq > 0
			if len(s.events) > 0 || closed {
				out = append(out, streamInfoOf(stream, s, closed, settings))
			}
		}
	}
	slices.SortFunc(out, func(a, b StreamInfo) int { return cmp.Compare(a.Stream, b.Stream) })
	return out
}

func streamInfoOf(name string, s *stream, closed bool, settings eventlog.Settings) StreamInfo {
	n := len(s.events)
	info := StreamInfo{Stream: name, Events: n, Bytes: s.bytes, Closed: closed}
	info.Room.Events = roomFor(settings.MaxEventsPerStream, int64(n))
	if n == 0 {
		return info
	}
	info.first, info.last = s.events[0].seq, s.events[n-1].seq
	info.Oldest, info.Newest = s.events[0].time(), s.events[n-1].time()
	if settings.MaxAge > 0 {
		info.Expires = info.Oldest.Add(settings.MaxAge)
	}
	return info
}

// InfoOf sums up a session. A session in the log that is not in the registry is open.
func (l *Ledger) InfoOf(rec session.Record, streams []StreamInfo, lim Limits) SessionInfo {
	info := SessionInfo{
		Session: rec.Session, State: cmp.Or(rec.State, session.Open), Created: rec.Created, Ended: rec.Ended,
		Owner: rec.Owner, Members: rec.Members, Metadata: rec.Metadata, Streams: len(streams), Limits: lim.Info(),
	}
	for _, s := range streams {
		info.Events += s.Events
		info.Bytes += s.Bytes
		if s.Events > 0 && (info.Oldest.IsZero() || s.Oldest.Before(info.Oldest)) {
			info.Oldest = s.Oldest
		}
		info.Newest = Later(info.Newest, s.Newest)
	}
	info.Activity = Later(Later(info.Created, info.Ended), info.Newest)
	if a := l.Accounts[event.LifeKey(rec.Session, rec.Life)]; a != nil {
		if info.State == session.Open {
			info.OpenStreams = a.open
		}
		if a.newestAt > 0 {
			info.Activity = Later(info.Activity, time.Unix(int64(a.newestAt), 0).UTC())
		}
	}
	return info
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Detail is [Ledger.InfoOf] with the next removals: those of the next sweep, and those that only time brings.
func (l *Ledger) Detail(rec session.Record, streams []StreamInfo, removals []Removal, lim Limits) SessionDetail {
	d := SessionDetail{SessionInfo: l.InfoOf(rec, streams, lim), Upcoming: []RemovalInfo{}, Streams: streams}
	d.Room = LimitsInfo{Events: roomFor(lim.MaxEvents, int64(d.Events)), Bytes: roomFor(lim.MaxBytes, d.Bytes)}
	for _, r := range removals {
		d.Upcoming = append(d.Upcoming, RemovalOf(r))
	}
	whole := slices.ContainsFunc(removals, func(r Removal) bool { return r.Cause == Closed })
	if !whole && d.Events > 0 {
		d.Upcoming = append(d.Upcoming, d.inTime(lim)...)
	}
	for i := range d.Upcoming {
		n := &d.Upcoming[i]
		n.Session = ""
		if n.Stream != "" {
			n.UpTo = l.ID(rec.Session, rec.Life, n.Stream, n.Last)
		}
	}
	for i := range d.Streams {
		if s := &d.Streams[i]; s.Events > 0 {
			s.OldestID, s.NewestID = l.ID(rec.Session, rec.Life, s.Stream, s.first), l.ID(rec.Session, rec.Life, s.Stream, s.last)
		}
	}
	empty := 0
	d.Streams = slices.DeleteFunc(d.Streams, func(s StreamInfo) bool {
		if s.Events == 0 {
			empty++
		}
		return s.Events == 0 && empty > maxEmpty
	})
	d.Omitted = max(empty-maxEmpty, 0)
	return d
}

// inTime returns the removals that only time brings: of the oldest event by age,
// and of all remaining events when the grace of a closed session is over.
func (d *SessionDetail) inTime(lim Limits) (next []RemovalInfo) {
	var oldest *StreamInfo
	for i := range d.Streams {
		if s := &d.Streams[i]; !s.Expires.IsZero() && (oldest == nil || s.first < oldest.first) {
			oldest = s
		}
	}
	if oldest != nil {
		next = append(next, RemovalInfo{Cause: Expired, Stream: oldest.Stream, Entries: 1, At: oldest.Expires, Last: oldest.first})
	}
	if d.State == session.Closed {
		next = append(next, RemovalInfo{Cause: Closed, Entries: d.Events, At: d.Ended.Add(lim.ClosedGrace)})
	}
	slices.SortStableFunc(next, func(a, b RemovalInfo) int { return a.At.Compare(b.At) })
	return next
}
