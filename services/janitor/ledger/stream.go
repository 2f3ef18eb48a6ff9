package ledger

import (
	"slices"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
)

// entry is a retained event, or a control entry that a trim names; 16 bytes of memory.
type entry struct {
	seq  uint64
	size uint32 // bytes of the message; at most 31 MiB
	unix uint32 // when it was stored, in whole seconds; good until 2106
}

// sizeOf returns the bytes of an entry's message.
func sizeOf(e eventlog.Entry) uint32 { return uint32(max(e.Size, 0)) } //nolint:gosec // at most 31 MiB

func (e entry) time() time.Time { return time.Unix(int64(e.unix), 0).UTC() }

// marker is a control entry in the log. One that was written again lies at seq, and counts
// from its first sequence.
type marker struct {
	seq   uint64 // 0: there is none
	first uint64
	at    time.Time // when it was stored first, or, of a seal, when the ledger got it
}

// put enters a marker, or its copy, and returns the sequence of the previous one; 0 for none.
func (m *marker) put(seq uint64, at time.Time) (before uint64) {
	if before = m.seq; before == 0 {
		m.first, m.at = seq, at
	}
	m.seq = seq
	return before
}

// drop removes a marker if it lies at a sequence.
func (m *marker) drop(seq uint64) {
	if m.seq == seq {
		*m = marker{}
	}
}

// markers are the newest control entries of one stream, or of a life as a whole.
type markers struct {
	seal  marker // of a life
	end   marker
	clear marker
}

// of returns the marker of a kind; nil for a kind that has none.
func (m *markers) of(kind event.Kind) *marker {
	switch kind {
	case event.Seal:
		return &m.seal
	case event.End:
		return &m.end
	case event.Clear:
		return &m.clear
	default:
		return nil
	}
}

// sealed reports whether a life has a seal or an end: then its streams are all it will have.
func (m *markers) sealed() bool { return m != nil && (m.seal.seq > 0 || m.end.seq > 0) }

// ended reports whether there is an end.
func (m *markers) ended() bool { return m != nil && m.end.seq > 0 }

// endAfter returns the end if it lies after a sequence.
func (m *markers) endAfter(seq uint64) (end marker, ok bool) {
	if m == nil || m.end.first <= seq {
		return marker{}, false
	}
	return m.end, true
}

// clearedAt returns the sequence of the last =clear marker, or 0.
func (m *markers) clearedAt() uint64 {
	if m == nil {
		return 0
	}
	return m.clear.seq
}

// Opening is the newest opening of a session in the log.
type Opening struct {
	Session  string
	Seq      uint64
	First    uint64    // the sequence of its original, as far as the ledger knows
	Used     bool      // the log had entries of a life of the name, and the floor has passed them
	Whole    bool      // the ledger has seen the original, so all of its life
	at       time.Time // when the entry at First was stored
	newestAt uint32    // when the newest event was stored of the lives of the name that the ledger has forgotten, as in entry
	// Life is the life that the opening names, when Known is set: the tail brings no content, so
	// the log is asked when it matters.
	Life  string
	Known bool
	// changes is how often its members or metadata were changed.
	changes uint64
}

// stream is the state of a stream that has entries in the log.
type stream struct {
	name          string
	events        []entry // retained, oldest first
	bytes         int64
	newest        uint64 // the newest event that the ledger knows of, retained or removed
	NewestRemoved uint64 // the newest event that the ledger knows to be removed
	birth         uint64 // the sequence of its birth, or of the newest copy; 0 when it has none
	markers       *markers
	popped        int32 // events that were removed from the front of events' array
	controls      int32 // control entries of the stream in the log, trims among them
	known         bool  // a copy of its birth covers the events that the ledger has not seen
	copied        bool  // the first birth that the ledger got is a copy: it may have forgotten the stream before
	final         bool  // the last event that was stored is a final event
	counted       bool  // in account.open
}

// push adds the newest event.
func (s *stream) push(e entry) {
	if len(s.events) == cap(s.events) {
		s.popped = 0 // append moves them
	}
	s.events = append(s.events, e)
	s.newest = e.seq
}

// popOldest removes the oldest event. An array is not kept for less than
// half of it.
func (s *stream) popOldest() {
	s.NewestRemoved = max(s.NewestRemoved, s.events[0].seq)
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

// removedBelow returns the newest event that was removed, as far as the ledger knows, given the
// first retained sequence.
func (s *stream) removedBelow(first uint64) uint64 {
	if s.newest < first {
		return s.newest
	}
	return s.NewestRemoved
}

// noteRemoved notes that events up to a sequence, which is one of them, were removed.
func (s *stream) noteRemoved(upTo uint64) {
	s.NewestRemoved, s.newest = max(s.NewestRemoved, upTo), max(s.newest, upTo)
}

// idle reports whether the log has no entries of the stream.
func (s *stream) idle() bool { return len(s.events) == 0 && s.controls == 0 }

// Account is the state of a life of a session.
type Account struct {
	Session, Life string
	Streams       map[string]*stream
	open          int // streams with events that are not finished, but for the life's end
	Events        int // retained, over all streams
	bytes         int64
	// trims has the sequence of the newest trim of each stream, and under "" that of the whole life.
	trims    map[string]uint64
	controls int // control entries of the life and its streams in the log, trims among them
	// announced are the trims among the controls. They explain holes, and stay until the floor
	// passes them; a life that has no other entries is forgotten.
	announced     int
	newestRemoved uint64 // the last event that any trim of the life has removed
	newestAt      uint32 // when the newest event was stored, as in entry; 0: none was seen
	first         uint64 // sequence of the oldest entry that the ledger ever had of the life
	markers       *markers
	clears        int  // =clear markers of the life and its streams in the log
	forgotten     bool // see [Ledger.forget]
}

func (a *Account) key() string { return event.LifeKey(a.Session, a.Life) }

// end returns the end of a stream, nothing while it is open: its own end, or the one of its
// life, when no event lies after it. An event after an end, which only damage or a publisher
// without a fence can store, cancels the end.
func (a *Account) end(s *stream) marker {
	if end, ended := s.markers.endAfter(s.newest); ended {
		return end
	}
	end, _ := a.markers.endAfter(s.newest)
	return end
}

// endedAfter reports whether the seal of a life, or the end of one of its streams, lies after a
// sequence.
func (a *Account) endedAfter(seq uint64) bool {
	if a.markers.seal.seq > seq {
		return true
	}
	for _, s := range a.Streams {
		if s.markers.ended() && s.markers.end.seq > seq {
			return true
		}
	}
	return false
}

// recount adds a stream that changed to the open ones, or takes it off. Callers that
// change a stream's events or markers call it.
func (a *Account) recount(s *stream) {
	_, ended := s.markers.endAfter(s.newest)
	open := len(s.events) > 0 && !s.final && !ended
	switch {
	case open && !s.counted:
		a.open++
	case !open && s.counted:
		a.open--
	}
	s.counted = open
}

// empty reports whether the log has no entries of the life.
func (a *Account) empty() bool { return a.Events+a.controls == 0 }

// bare reports whether the log has no entries of the life but trims.
func (a *Account) bare() bool { return a.Events+a.controls == a.announced }
