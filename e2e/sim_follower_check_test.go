package e2e_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

// picture returns the state of a partition now.
func (tr *truth) picture(ctx context.Context, p int) (picture, error) {
	info, err := tr.info(ctx, p, jetstream.WithDeletedDetails(true))
	if err != nil {
		return picture{}, err
	}
	held := picture{info.State.FirstSeq, info.State.LastSeq, map[uint64]bool{}}
	for _, sequence := range info.State.Deleted {
		held.deleted[sequence] = true
	}
	return held, nil
}

// wants reports whether an event is one that the follower asks for, if it follows the session.
func (f *follower) wants(e stored) bool {
	if e.kind != event.Message || len(f.streams) > 0 && !slices.Contains(f.streams, e.subject.Stream) {
		return false
	}
	var m struct{ Method string }
	return f.method == "" || json.Unmarshal(e.data, &m) == nil && m.Method == f.method
}

// record has all entries that were ever stored of a session.
type record struct {
	name    string
	wanted  []stored          // the events that a follower asks for
	events  []stored          // all of them, also those that are no JSON, which leave gaps as well
	control []stored          // clears, trims and openings
	opened  map[string]uint64 // by life: its first opening
	ended   map[string]uint64 // by life: its first end
}

func (f *follower) recordOf(session string) *record {
	r := &record{name: session, opened: map[string]uint64{}, ended: map[string]uint64{}}
	first := func(of map[string]uint64, life string, sequence uint64) {
		of[life] = min(cmp.Or(of[life], sequence), sequence)
	}
	tr := f.w.truth
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, e := range tr.parts[tr.partition(session)] {
		if e.subject.Session != session {
			continue
		}
		switch {
		case e.kind == event.Message:
			r.events = append(r.events, e)
		case e.kind == event.Open:
			first(r.opened, e.opens, e.sequence)
			r.control = append(r.control, e)
		case e.kind == event.End && e.subject.Stream == "":
			first(r.ended, e.subject.Life, e.sequence)
		case e.kind == event.Clear || e.kind == event.Trim:
			r.control = append(r.control, e)
		}
	}
	for _, e := range tr.sessions[session] {
		if f.wants(e) {
			r.wanted = append(r.wanted, e)
		}
	}
	return r
}

// isGone reports whether an event had been removed when a picture was taken: by the log, or by its
// control entries at that time.
func (r *record) isGone(e stored, held picture) bool {
	if e.sequence < held.first || held.deleted[e.sequence] {
		return true
	}
	return slices.ContainsFunc(r.control, func(c stored) bool {
		switch {
		case c.sequence > held.last:
			return false
		case c.kind == event.Open:
			return c.opens != e.subject.Life && c.sequence > e.sequence // the name is used again
		case c.subject.Life != e.subject.Life || c.subject.Stream != "" && c.subject.Stream != e.subject.Stream:
			return false
		case c.kind == event.Clear:
			return e.sequence < c.sequence
		default:
			return e.sequence <= c.upTo
		}
	})
}

// hadEnded reports whether the life of an event had ended when a picture was taken.
func (r *record) hadEnded(e stored, held picture) bool {
	end := r.ended[e.subject.Life]
	return end != 0 && end <= held.last
}

// progress is how far a follower has come with a session, in one branch of its receipts.
type progress struct {
	ask       ask
	at        uint64          // up to here everything was received, or reported as lost
	had       uint64          // the farthest of at before it moved back
	received  map[uint64]bool // after at
	known     map[string]bool // the lives of which an event was received
	missed    map[string]bool // those that had ended when their openings were passed
	isNew     bool            // there was no ID with a position of it yet
	beginning picture         // the state at the first such ID
	gaps      []toldAt
}

// toldAt is a gap, the follower's position when it was received, and the state of the partition then.
type toldAt struct {
	gap   *toldGap
	after uint64
	held  picture
}

// check follows every branch of the receipts, up to its last ID: a client that reconnects does not know
// later receipts.
func (f *follower) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	goesOn := map[*receipt]bool{}
	for _, r := range f.all {
		goesOn[r.before] = true
	}
	m := model{follower: f, records: map[string]*record{}, checked: map[*receipt]bool{}}
	for _, name := range sessionNames {
		m.records[name] = f.recordOf(name)
	}
	for _, leaf := range f.all {
		if goesOn[leaf] {
			continue
		}
		var branch []*receipt
		for r := leaf; r != nil; r = r.before {
			if r.position != nil || len(branch) > 0 {
				branch = append(branch, r)
			}
		}
		slices.Reverse(branch)
		if n, wrong := m.follow(branch); wrong != "" {
			for _, r := range branch[max(0, n-60) : n+1] {
				wrong += "\n      " + r.String()
			}
			f.w.violate("%s: %s", f, wrong)
			return // others have the same reason, mostly
		}
		f.w.count("branches")
	}
}

// model follows the receipts of a follower.
type model struct {
	*follower
	records  map[string]*record
	checked  map[*receipt]bool // gaps, which are in many branches
	sessions map[string]*progress
	asks     []ask
	misfit   bool     // the sessions followed, or their cursors, are not those of the latest ID
	latest   *receipt // with an ID
}

// follow returns the error in a branch, or "", and its index.
func (m *model) follow(branch []*receipt) (at int, wrong string) {
	m.sessions, m.asks, m.latest = map[string]*progress{}, nil, nil
	for i, r := range branch {
		switch r.what {
		case "connect":
			m.connect(r)
		case "gap":
			wrong = m.gap(r)
		case "message":
			wrong = m.message(r)
		}
		if wrong == "" && r.position != nil {
			wrong = m.moveTo(r)
			m.latest = r
		}
		if wrong != "" {
			return i, wrong
		}
	}
	return 0, ""
}

// connect changes the sessions followed.
func (m *model) connect(r *receipt) {
	changed := m.latest != nil && !sameNames(m.asks, r.asks)
	m.asks, m.misfit = r.asks, changed
	for name := range m.records {
		a, is := follows(r.asks, name)
		p := m.sessions[name]
		switch {
		case !is:
			delete(m.sessions, name)
		case p == nil || p.isNew || changed && a.added: // it begins
			m.sessions[name] = &progress{ask: a, received: map[uint64]bool{}, known: map[string]bool{}, missed: map[string]bool{}, isNew: true}
		default:
			p.ask = a
		}
	}
	if m.latest == nil {
		return
	}
	for name, p := range m.sessions {
		number := m.w.truth.partition(name)
		at := m.latest.position[number]
		if at.Added == at.Sequence || !changed && m.isAdding(number) {
			continue
		}
		// Which sessions of the partition were behind is not known any more: all move back (docs/http.md).
		p.had = max(p.had, p.at)
		p.goBackTo(at.Added, m.records[name])
		m.misfit = true
	}
}

// isAdding reports whether a session that is asked for as new lies in a partition; a pattern does in all.
func (m *model) isAdding(number int) bool {
	return slices.ContainsFunc(m.asks, func(a ask) bool {
		return a.added && (a.isPattern() || m.w.truth.partition(a.name) == number)
	})
}

// goBackTo has the session begin again after a sequence: the lives of later openings are not known any more.
func (p *progress) goBackTo(sequence uint64, of *record) {
	p.at = min(p.at, sequence)
	maps.DeleteFunc(p.known, func(life string, _ bool) bool { return of.opened[life] > sequence })
	maps.DeleteFunc(p.received, func(q uint64, _ bool) bool { return q > sequence })
}

func (m *model) message(r *receipt) string {
	p := m.sessions[r.session]
	switch {
	case p == nil:
		return "the session is not followed"
	case p.received[r.sequence] || r.sequence <= p.at:
		return fmt.Sprintf("it came again, or late: the follower was at %d", p.at)
	case m.w.truth.lost[m.w.truth.partition(r.session)][r.sequence]: // before its session was known
	case !slices.ContainsFunc(m.records[r.session].wanted, func(e stored) bool { return e.sequence == r.sequence && e.subject.Stream == r.stream }):
		return "the event was not asked for"
	}
	p.received[r.sequence] = true
	if e, ok := m.w.truth.at(m.w.truth.partition(r.session), r.sequence); ok {
		p.known[e.subject.Life] = true
	}
	return ""
}

// gap enters a gap, and looks whether there may be one.
func (m *model) gap(r *receipt) string {
	for name, p := range m.sessions {
		if r.session != name && r.session != p.ask.name {
			continue
		}
		held := m.pictures.taken[r.picture][m.w.truth.partition(name)]
		p.gaps = append(p.gaps, toldAt{r.gap, p.at, held})
		if r.session == name && !m.checked[r] {
			if wrong := m.mayBe(r, m.records[name], p.at, held); wrong != "" {
				return wrong
			}
		}
		if r.gap.Reason == "rolled_back" { // later events arrive again
			p.goBackTo(r.gap.resumesAt, m.records[name])
			p.had = min(p.had, p.at)
		}
	}
	m.checked[r] = true
	return ""
}

// mayBe returns the error of a session's gap that was received after a position, or "".
func (m *model) mayBe(r *receipt, of *record, after uint64, held picture) string {
	g := r.gap
	switch {
	case g.Reason == "unknown":
		// An ID identifies all sessions together at its positions.
		if !m.w.sc.reuses && !m.misfit || g.Certain {
			return "a session that was followed is unknown"
		}
	case g.Reason == "rolled_back":
		if !m.w.unattended() && !m.w.sc.has(opRestartNATS) { // see unattended and disowned
			return "the log was not rolled back"
		}
	case !g.Certain:
		deletedTogether := m.w.sc.reuses && g.Reason != "expired" // the events of a session that has ended (docs/http.md)
		if r.certain && after+1 >= held.first && !deletedTogether {
			return "the gap is not certain, and the log says all that it takes"
		}
	case !m.w.truth.lostIn(m.w.truth.partition(of.name), after, math.MaxUint64) && !slices.ContainsFunc(of.events, func(e stored) bool {
		return e.sequence > after && g.about(e.subject.Stream) && of.isGone(e, held)
	}):
		return "nothing was removed"
	}
	return ""
}

// moveTo checks that everything up to the positions of a receipt was received.
func (m *model) moveTo(r *receipt) string {
	for name, p := range m.sessions {
		number := m.w.truth.partition(name)
		at, there := r.position[number]
		if !there {
			return "there is no position of " + name
		}
		to := at.Sequence
		if p.ask.added {
			to = at.Added
		}
		if to < p.at {
			return fmt.Sprintf("the position of %s goes back from %d to %d", name, p.at, to)
		}
		held := m.pictures.taken[r.picture][number]
		if p.isNew {
			p.isNew, p.beginning = false, held
		}
		of := m.records[name]
		for life, opened := range of.opened {
			if end := of.ended[life]; p.at < opened && opened <= to {
				p.missed[life] = end != 0 && end <= held.last
			}
		}
		i, _ := slices.BinarySearchFunc(of.wanted, p.at+1, func(e stored, q uint64) int { return cmp.Compare(e.sequence, q) })
		for ; i < len(of.wanted) && of.wanted[i].sequence <= to; i++ {
			if e := of.wanted[i]; !p.received[e.sequence] && !m.mayLack(p, of, e, held) {
				return fmt.Sprintf("event %d of %s/%s, life %s, is MISSING between %d and %d; it was gone: %t", e.sequence, name, e.subject.Stream, e.subject.Life, p.at, to, of.isGone(e, held))
			}
		}
		p.at = to
		maps.DeleteFunc(p.received, func(q uint64, _ bool) bool { return q <= to })
	}
	return ""
}

// mayLack reports whether a follower may lack an event after its position. The picture is the one of the ID
// that passes it.
func (m *model) mayLack(p *progress, of *record, e stored, held picture) bool {
	gone := of.isGone(e, held)
	if gone && e.sequence <= p.had { // it was received, or reported in a gap, before the position moved back
		return true
	}
	// The client does not miss an event that had been removed when it connected, that was stored already
	// if it begins now, or whose life had ended if it follows a pattern.
	if of.isGone(e, p.beginning) || m.fromNow && e.sequence <= p.beginning.last || p.ask.isPattern() && of.hadEnded(e, p.beginning) {
		return true
	}
	// An entry removed before it was read may have been the end, the clear or the trim.
	if (gone || p.ask.isPattern()) && m.w.truth.lostIn(e.subject.Partition, 0, math.MaxUint64) {
		return true
	}
	// A life that began, ended and was forgotten before the client reached its opening leaves no trace
	// (docs/adr/0031). This hides the loss of a life of which no event arrived before it was removed.
	life := e.subject.Life
	if m.w.sc.reuses && gone && p.missed[life] && !p.known[life] {
		return true
	}
	return slices.ContainsFunc(p.gaps, func(g toldAt) bool {
		// The edge does not know the extent of damage, and passes over retained events.
		return e.sequence > g.after && g.gap.about(e.subject.Stream) && (of.isGone(e, g.held) || g.gap.Reason == "damaged" && e.sequence <= g.held.last)
	})
}
