package janitor

import (
	"sort"
	"strings"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/marks"
)

// answer answers a question for marks from what is in the book now. The ledger has
// to be complete.
//
// The default of an answer about the whole partition covers the streams of every
// session that the ledger does not know, and so the sessions that an earlier
// janitor trimmed; a question about one session gets the default of that session.
func (l *ledger) answer(req marks.Request, now time.Time) marks.Reply {
	doubt := max(l.doubts.floor, l.doubts.unsettled())
	reply := marks.Reply{Through: l.through, Default: marks.Mark{Maybe: doubt}}
	switch {
	case len(req.Places) > 0:
		for _, place := range req.Places {
			reply.Places = append(reply.Places, l.placeMark(place, doubt, now))
		}
	case req.Session == "":
		reply.Default.Maybe = max(doubt, l.doubts.trims)
		reply.Marks, reply.Next = l.page(req.From, reply.Default, now)
	case l.accounts[req.Session] == nil:
	case req.Stream != "":
		a := l.accounts[req.Session]
		reply.Default.Maybe = max(doubt, a.maybe)
		if s := a.streams[req.Stream]; s != nil {
			if m := l.markOf(a, s, now); m != reply.Default {
				reply.Marks = []marks.StreamMark{{Session: req.Session, Stream: req.Stream, Mark: m}}
			}
		}
	default:
		reply.Default.Maybe = max(doubt, l.accounts[req.Session].maybe)
		reply.Marks, reply.Next = l.pageOf(req.Session, req.From, reply.Default, now)
	}
	return reply
}

// placeMark returns what is known of a stream; doubt is what holds for those of
// sessions that the ledger does not know.
func (l *ledger) placeMark(of marks.Place, doubt uint64, now time.Time) marks.PlaceMark {
	a := l.accounts[of.Session]
	if a == nil {
		return marks.PlaceMark{Mark: marks.Mark{Maybe: doubt}}
	}
	s := a.streams[of.Stream]
	if s == nil {
		return marks.PlaceMark{Mark: marks.Mark{Maybe: max(doubt, a.maybe)}, Closed: known(a.markers.closedAt())}
	}
	m := marks.PlaceMark{Mark: l.markOf(a, s, now), Closed: known(a.closedAt(s))}
	if i := sort.Search(len(s.events), func(i int) bool { return s.events[i].seq > m.Removed }); i < len(s.events) {
		m.First = s.events[i].seq
	}
	return m
}

// known returns 0 for the close sequence of what is open.
func known(closed uint64) uint64 {
	if closed == open {
		return 0
	}
	return closed
}

// markOf returns the mark of a stream. What a =clear marker covers is gone, whether
// or not it has been deleted.
func (l *ledger) markOf(a *account, s *stream, now time.Time) marks.Mark {
	l.expire(a, s, now)
	m := marks.Mark{Removed: s.removed, Reason: s.reason, Maybe: max(s.maybe, l.doubts.floor, l.doubts.unsettled())}
	cleared := a.clearedAt(s)
	if upTo := min(cleared, a.closedAt(s)); upTo > 0 {
		if n := sort.Search(len(s.events), func(i int) bool { return s.events[i].seq > upTo }); n > 0 {
			m.Removed = s.events[n-1].seq
		}
	}
	if m.Removed > 0 && m.Removed <= cleared {
		m.Reason = marks.Cleared
	}
	return m
}

// cursor is where a page begins: behind a stream of a session, by their tokens.
type cursor struct{ session, stream string }

func (c cursor) String() string { return c.session + "." + c.stream }

func parseCursor(s string) cursor {
	session, stream, _ := strings.Cut(s, ".")
	return cursor{session, stream}
}

// page returns a page of the marks of all sessions that differ from the default.
func (l *ledger) page(from string, def marks.Mark, now time.Time) ([]marks.StreamMark, string) {
	at := parseCursor(from)
	var page []marks.StreamMark
	for _, session := range sorted(&l.order, l.accounts).from(at.session) {
		after := ""
		if session.token == at.session {
			after = at.stream
		}
		var full bool
		if page, full = l.appendMarks(page, session.name, after, def, now); full {
			return page, next(page)
		}
	}
	return page, ""
}

// pageOf is page for one session.
func (l *ledger) pageOf(session, from string, def marks.Mark, now time.Time) ([]marks.StreamMark, string) {
	page, full := l.appendMarks(nil, session, parseCursor(from).stream, def, now)
	if full {
		return page, next(page)
	}
	return page, ""
}

// next returns where the page after a full one begins.
func next(page []marks.StreamMark) string {
	last := page[len(page)-1]
	return cursor{event.Token(last.Session), event.Token(last.Stream)}.String()
}

// appendMarks appends the marks of a session's streams behind a token until the
// page is full.
func (l *ledger) appendMarks(page []marks.StreamMark, session, after string, def marks.Mark, now time.Time) (_ []marks.StreamMark, full bool) {
	a := l.accounts[session]
	for _, stream := range sorted(&a.order, a.streams).from(after) {
		if stream.token == after {
			continue
		}
		m := l.markOf(a, a.streams[stream.name], now)
		if m == def {
			continue
		}
		page = append(page, marks.StreamMark{Session: session, Stream: stream.name, Mark: m})
		if len(page) == marks.PageSize {
			return page, true
		}
	}
	return page, false
}
