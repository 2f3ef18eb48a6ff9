package janitor

import (
	"math"
	"slices"
	"time"

	"rejoin/shared/marks"
)

// entry is a retained event, 16 bytes of memory.
type entry struct {
	seq  uint64
	size uint32 // bytes of the message; at most 31 MiB
	unix uint32 // when it was stored, in whole seconds; good until 2106
}

func (e entry) time() time.Time { return time.Unix(int64(e.unix), 0).UTC() }

// marker is a =close or =clear marker in the log.
type marker struct {
	seq uint64
	at  time.Time // when a =close marker was stored, or the ledger got a =clear marker
}

// markers are those of one stream, or of a session as a whole, in order of sequence.
type markers struct {
	closes, clears []marker
}

// open is the close sequence of what has no =close marker.
const open = uint64(math.MaxUint64)

// closedAt returns the sequence of the first =close marker, which is the one that
// counts: what a direct publisher wrote after it is ignored.
func (m *markers) closedAt() uint64 {
	if m == nil || len(m.closes) == 0 {
		return open
	}
	return m.closes[0].seq
}

// clearedAt returns the sequence of the last =clear marker, or 0.
func (m *markers) clearedAt() uint64 {
	if m == nil || len(m.clears) == 0 {
		return 0
	}
	return m.clears[len(m.clears)-1].seq
}

// stream is what the ledger knows of a stream. It is kept when nothing of it is
// retained any more, for the sake of removed and maybe.
type stream struct {
	events  []entry // retained, oldest first
	bytes   int64
	removed uint64 // the last event known to be removed
	maybe   uint64 // see doubts
	reason  marks.Reason
	// ghosts counts the events after a =close marker that were doomed. JetStream
	// counts them until they are deleted, and nobody can say whether that was
	// before or after the next event of a publisher who goes on writing.
	ghosts  int32
	popped  int32 // events that went off the front of the array that events lies in
	final   bool  // the last event that was stored says that it is the stream's last
	counted bool  // in account.open
	markers *markers
}

// push takes an event in.
func (s *stream) push(e entry) {
	if len(s.events) == cap(s.events) {
		s.popped = 0 // append moves them
	}
	s.events = append(s.events, e)
}

// popOldest takes the oldest event out. An array is not kept for less than half of it.
func (s *stream) popOldest() {
	s.events = s.events[1:]
	s.popped++
	if int(s.popped) > len(s.events) {
		s.events = slices.Clone(s.events)
		s.popped = 0
	}
	if len(s.events) == 0 {
		s.events = nil
	}
}

// oldest returns the sequence of the oldest retained event.
func (s *stream) oldest() uint64 {
	if len(s.events) == 0 {
		return math.MaxUint64
	}
	return s.events[0].seq
}

// account is what the ledger knows of a session.
type account struct {
	streams map[string]*stream
	order   *names // of the streams
	open    int    // streams with events that are not finished, but for the session's end
	events  int    // retained, over all streams
	bytes   int64
	maybe   uint64 // for streams that the ledger does not know; see doubts
	last    uint32 // when the newest event was stored, as in entry; 0: none was seen
	markers *markers
	marked  int  // markers of the session and of its streams
	trimmed trim // up to the last event that was ever doomed
	doomed  int  // entries that are doomed and not deleted yet
	over    bool // the session is on the ledger's list of those to be trimmed soon
}

// closedAt returns the sequence after which a stream's events are ignored.
func (a *account) closedAt(s *stream) uint64 {
	return min(a.markers.closedAt(), s.markers.closedAt())
}

// clearedAt returns the sequence up to which a stream is cleared.
func (a *account) clearedAt(s *stream) uint64 {
	return max(a.markers.clearedAt(), s.markers.clearedAt())
}

// recount counts a stream that changed among the open ones, or takes it off. Whoever
// changes a stream's events or markers calls it.
func (a *account) recount(s *stream) {
	open := len(s.events) > 0 && !s.final && s.markers.closedAt() == open
	switch {
	case open && !s.counted:
		a.open++
	case !open && s.counted:
		a.open--
	}
	s.counted = open
}

// empty reports whether nothing of the session is in the log.
func (a *account) empty() bool { return a.events == 0 && a.marked == 0 && a.doomed == 0 }
