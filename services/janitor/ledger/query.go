package ledger

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"rejoin/shared/session"
)

// Retained sums up the events of a session's life.
type Retained struct {
	Events int
	Bytes  int64
	Newest int64 // of the events that are deleted too; see [Account]
}

// Retained adds to a map the sums of every life that has, or had, events.
func (l *Ledger) Retained(of map[string]Retained) {
	for key, a := range l.Accounts {
		if a.newestAt > 0 {
			of[key] = Retained{a.Events, a.bytes, int64(a.newestAt)}
		}
	}
}

// lifeOf returns the life of a session that was published to last, for a session that is
// not in the registry.
func (l *Ledger) lifeOf(session string) (life string) {
	newest := uint32(0)
	for _, a := range l.Accounts {
		if a.Session == session && a.newestAt >= newest {
			life, newest = a.Life, a.newestAt
		}
	}
	return life
}

// Shown returns the record of a session, or one with its life where there is none.
func (l *Ledger) Shown(name string, rec session.Record) session.Record {
	if rec.Session == "" {
		rec = session.Record{Session: name, Life: l.lifeOf(name)}
	}
	return rec
}

// RetainedAfter returns how many retained events lie after a cursor in a stream of a life, or in
// all streams when it has no name.
func (l *Ledger) RetainedAfter(life, name string, cursor uint64) (n int) {
	a := l.Accounts[life]
	if a == nil {
		return 0
	}
	after := func(s *stream) int {
		return len(s.events) - sort.Search(len(s.events), func(i int) bool { return s.events[i].seq > cursor })
	}
	if name != "" {
		if s := a.Streams[name]; s != nil {
			n = after(s)
		}
		return n
	}
	for _, s := range a.Streams {
		n += after(s)
	}
	return n
}

// PublishedInfo is an entry of the log, without its message.
type PublishedInfo struct {
	// Kind is "event", "close" for an end, or "clear".
	Kind     string    `json:"kind"`
	Stream   string    `json:"stream,omitempty"` // absent for an entry about the session
	Sequence uint64    `json:"sequence"`
	ID       string    `json:"id,omitempty"` // of an event
	Time     time.Time `json:"time"`
	// Type and Bytes are the event's. Type is absent when only the ledger was asked.
	Type  string `json:"type,omitempty"`
	Bytes int    `json:"bytes"`
	Final bool   `json:"final,omitempty"` // the stream's last one
}

// NewestOf returns the newest retained events, ends and clears of a life, the newest
// first, as far as the ledger knows them.
func (l *Ledger) NewestOf(life string, limit int) []PublishedInfo {
	a := l.Accounts[life]
	if a == nil {
		return nil
	}
	newest := Firsts[PublishedInfo]{N: limit, Compare: func(a, b PublishedInfo) int { return cmp.Compare(b.Sequence, a.Sequence) }}
	mark := func(stream string, m *markers) {
		if m == nil {
			return
		}
		for kind, e := range map[string]marker{"close": m.end, "clear": m.clear} {
			if e.seq > 0 {
				newest.Add(PublishedInfo{Kind: kind, Stream: stream, Sequence: e.first, Time: e.at.UTC()})
			}
		}
	}
	mark("", a.markers)
	for name, s := range a.Streams {
		mark(name, s.markers)
		for _, e := range slices.Backward(s.events) {
			one := PublishedInfo{Kind: "event", Stream: name, Sequence: e.seq, Time: e.time(), Bytes: int(e.size)}
			if newest.beyond(one) {
				break // the older ones are beyond, too
			}
			newest.Add(one)
		}
	}
	all, _ := newest.All()
	return all
}

// NearInfo is a session that is close to a limit.
type NearInfo struct {
	Session     string     `json:"session"`
	Events      int        `json:"events"`
	Bytes       int64      `json:"bytes"`
	OpenStreams int        `json:"openStreams"`
	Limits      LimitsInfo `json:"limits"`
	// Limit is the one that it is closest to, "events", "bytes" or "streams", and Share how
	// much of it is used: more than 1 when it is over.
	Limit string  `json:"limit"`
	Share float64 `json:"share"`
}

// closest returns the limit of which an account uses the largest share.
func (lim Limits) closest(a *Account) (limit string, share float64) {
	for _, one := range []struct {
		name     string
		has, max int64
	}{{"events", int64(a.Events), lim.MaxEvents}, {"bytes", a.bytes, lim.MaxBytes}, {"streams", int64(a.open), lim.MaxStreams}} {
		if one.max > 0 && float64(one.has)/float64(one.max) > share {
			limit, share = one.name, float64(one.has)/float64(one.max)
		}
	}
	return limit, share
}

// Near adds the sessions that use a share of a limit, and returns how many there are.
func (l *Ledger) Near(f *Firsts[NearInfo], share float64, limitsOf func(session, life string) (Limits, bool)) (n int) {
	for _, a := range l.Accounts {
		if a.Events == 0 || a.markers.sealed() {
			continue
		}
		lim, ok := limitsOf(a.Session, a.Life)
		if !ok {
			continue
		}
		if limit, used := lim.closest(a); used >= share {
			f.Add(NearInfo{a.Session, a.Events, a.bytes, a.open, lim.Info(), limit, used})
			n++
		}
	}
	return n
}
