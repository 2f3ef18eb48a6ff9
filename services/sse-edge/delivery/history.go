package delivery

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/inspect"
)

const (
	// maxComings is how many connects, resumes and ends a history holds at most, 136 B each and their
	// names.
	maxComings = 8192
	// maxGaps is how many gaps it holds: a storm of connects must not push these out.
	maxGaps = 4096
)

// History remembers the newest connects, resumes, ends and gaps of the edge's clients. It
// drops the oldest when it is full, and knows the time since when it is complete. It is
// safe for concurrent use.
type History struct {
	mu            sync.Mutex
	began         int64 // as in happening
	comings, gaps latest
}

// happening is an entry of a history.
type happening struct {
	at        int64 // Unix time in nanoseconds
	where     window.Place
	address   netip.Addr
	number    uint64 // of the connection; 0 for a poll
	what      inspect.What
	reason    string
	cursor    uint64
	requested string // of a gap
	events    uint64 // of an end: the number of sent events
	came      cursor.Arrival
	certain   bool
}

var arrivals = [...]inspect.Came{inspect.FromStart, inspect.FromNow, inspect.FromWindow, inspect.FromLog}

func newHistory() *History {
	return &History{began: time.Now().UnixNano(), comings: latest{most: maxComings}, gaps: latest{most: maxGaps}}
}

// note adds an entry.
func (d *History) note(h happening) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h.at = time.Now().UnixNano()
	if h.what == inspect.Gapped {
		d.gaps.add(h)
	} else {
		d.comings.add(h)
	}
}

// noteGap adds a gap of a step that was reported to a reader's client.
func (d *History) noteGap(r *cursor.Reader, s cursor.Step, g cursor.Gap, by Request) {
	requested := g.Requested
	if cut := len(requested) - inspect.MaxRequested; cut > 0 {
		requested = requested[cut:]
	}
	d.note(happening{
		what: inspect.Gapped, where: window.Place{Session: cmp.Or(g.Session, r.Place.Session), Life: r.Place.Life, Stream: g.Stream}, address: by.Address, number: by.number,
		reason: string(g.Reason), certain: g.Certain, requested: strings.Clone(requested), cursor: r.ResumesAt(s),
	})
}

// OfSession returns the entries of a session's clients, the newest first, how many there are,
// and since when these are all.
func (d *History) OfSession(session string, limit int) (newest []inspect.Happening, total int, since time.Time) {
	var found []happening
	d.mu.Lock()
	for _, book := range []*latest{&d.comings, &d.gaps} {
		kept := 0
		for _, h := range slices.Backward(book.all) {
			if h.where.Session != session {
				continue
			}
			if total++; kept < limit {
				kept++
				found = append(found, h)
			}
		}
	}
	since = d.whole(&d.comings, &d.gaps)
	d.mu.Unlock()
	slices.SortStableFunc(found, func(a, b happening) int { return cmp.Compare(b.at, a.at) })
	for _, h := range found[:min(limit, len(found))] {
		h.where.Session = ""
		newest = append(newest, h.shown())
	}
	return newest, total, since
}

// Lately returns the gaps that were reported within [inspect.Kept], the newest first, how
// many there were, by reason, and since when these are all.
func (d *History) Lately(limit int) (newest []inspect.Happening, reasons map[string]int, total int, since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := time.Now().Add(-inspect.Kept).UnixNano()
	reasons = map[string]int{}
	for _, h := range slices.Backward(d.gaps.all) {
		if h.at < oldest {
			break
		}
		reasons[h.reason]++
		if total++; total <= limit {
			newest = append(newest, h.shown())
		}
	}
	return newest, reasons, total, d.whole(&d.gaps)
}

// whole returns since when books are complete. The caller holds mu.
func (d *History) whole(books ...*latest) time.Time {
	since := d.began
	for _, book := range books {
		since = max(since, book.droppedAt)
	}
	return time.Unix(0, since).UTC()
}

func (h happening) shown() inspect.Happening {
	s := inspect.Happening{
		Time: time.Unix(0, h.at).UTC(), What: h.what, Session: h.where.Session, Stream: h.where.Stream,
		Connection: h.number, Reason: h.reason, Cursor: h.cursor,
	}
	if h.address.IsValid() {
		s.Address = h.address.String()
	}
	switch h.what {
	case inspect.Connected, inspect.Resumed:
		s.Came = arrivals[h.came]
	case inspect.Gapped:
		s.Certain, s.Requested = &h.certain, h.requested
	case inspect.Ended:
		s.Events = h.events
	}
	return s
}

// latest keeps the newest entries, oldest first.
type latest struct {
	most      int
	all       []happening
	droppedAt int64 // the time of the newest dropped entry; 0 for none
}

// add adds an entry. Of too many it drops the oldest, some at a time.
func (l *latest) add(one happening) {
	if len(l.all) == l.most {
		drop := l.most / 16
		l.droppedAt = l.all[drop-1].at
		l.all = slices.Delete(l.all, 0, drop)
	}
	l.all = append(l.all, one)
}
