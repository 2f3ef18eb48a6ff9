package janitor

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"rejoin/shared/session"
)

// sessionInfo is a session as HTTP shows it.
type sessionInfo struct {
	Session string        `json:"session"`
	State   session.State `json:"state"`
	// Created is absent for a session that is in the log and not registered yet.
	Created  time.Time       `json:"created,omitzero"`
	Ended    time.Time       `json:"ended,omitzero"`
	Owner    string          `json:"owner,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	// Streams counts those with events in the log and those that are closed.
	Streams int   `json:"streams"`
	Events  int   `json:"events"`
	Bytes   int64 `json:"bytes"`
	// Oldest and Newest are when the retained events were stored, to the second.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
}

// streamInfo is a stream as HTTP shows it.
type streamInfo struct {
	Stream string    `json:"stream"`
	Events int       `json:"events"`
	Bytes  int64     `json:"bytes"`
	First  uint64    `json:"first,omitempty"` // sequence in the partition
	Last   uint64    `json:"last,omitempty"`
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	Closed bool      `json:"closed"`
}

// streamsOf returns a session's streams, by name: those with events in the log and
// those that are closed. records are the session's in the registry.
func (l *ledger) streamsOf(name string, records []session.Record, now time.Time) []streamInfo {
	closed := map[string]bool{}
	all := false
	for _, r := range records {
		if r.State == session.Closed && r.Stream != "" {
			closed[r.Stream] = true
		}
		all = all || r.State == session.Closed && r.Stream == ""
	}
	var out []streamInfo
	if a := l.accounts[name]; a != nil {
		for stream, s := range a.streams {
			l.expire(a, s, now)
			isClosed := all || closed[stream] || a.closedAt(s) != open
			delete(closed, stream)
			if len(s.events) == 0 && !isClosed {
				continue
			}
			info := streamInfo{Stream: stream, Events: len(s.events), Bytes: s.bytes, Closed: isClosed}
			if n := len(s.events); n > 0 {
				first, last := s.events[0], s.events[n-1]
				info.First, info.Oldest, info.Last, info.Newest = first.seq, first.time(), last.seq, last.time()
			}
			out = append(out, info)
		}
	}
	for stream := range closed {
		out = append(out, streamInfo{Stream: stream, Closed: true})
	}
	slices.SortFunc(out, func(a, b streamInfo) int { return cmp.Compare(a.Stream, b.Stream) })
	return out
}

// infoOf sums up a session. A session in the log that is not registered is open.
func infoOf(name string, rec session.Record, streams []streamInfo) sessionInfo {
	info := sessionInfo{
		Session: name, State: cmp.Or(rec.State, session.Open), Created: rec.Created, Ended: rec.Ended,
		Owner: rec.Owner, Metadata: rec.Metadata, Streams: len(streams),
	}
	for _, s := range streams {
		info.Events += s.Events
		info.Bytes += s.Bytes
		if s.Events > 0 && (info.Oldest.IsZero() || s.Oldest.Before(info.Oldest)) {
			info.Oldest = s.Oldest
		}
		if s.Newest.After(info.Newest) {
			info.Newest = s.Newest
		}
	}
	return info
}
