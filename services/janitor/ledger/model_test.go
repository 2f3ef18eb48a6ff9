package ledger

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/session"
)

// unopened returns the key of a session's empty life.
func unopened(session string) string { return event.LifeKey(session, "") }

// noRegistry is a registry without records.
func noRegistry(string) (session.Record, bool) { return session.Record{}, false }

// place is a stream of a life.
type place struct{ session, life, stream string }

// model is a log as JetStream keeps it: one partition, which removes nothing by itself.
type model struct {
	now     time.Time // by the server's clock
	last    uint64
	first   uint64
	entries []eventlog.Entry // in order
	lives   map[string]*modelLife
	opened  int
	history map[place][]uint64 // all events that there ever were
	trims   []eventlog.Trim
	copies  []modelCopy
}

// modelLife is the newest life of a name.
type modelLife struct {
	life   string
	born   map[string]bool // the streams, and whether they have ended
	sealed bool
	ended  time.Time
}

// modelCopy is a control entry that was written again.
type modelCopy struct {
	original uint64
	at       time.Time
}

func newModel() *model {
	return &model{first: 1, now: time.Unix(1_800_000_000, 0).UTC(), lives: map[string]*modelLife{}, history: map[place][]uint64{}}
}

func (m *model) state() eventlog.State {
	return eventlog.State{
		Created: time.Unix(1, 0), Origin: "birth", Generations: []event.Generation{{ID: "birth", Start: 1}},
		First: m.first, Last: m.last, Entries: uint64(len(m.entries)),
	}
}

// store stores an entry.
func (m *model) store(e eventlog.Entry) uint64 {
	m.last++
	m.now = m.now.Add(time.Millisecond)
	e.Valid, e.Sequence, e.Time = true, m.last, m.now
	if e.Trim != nil {
		e.Trim.Sequence, e.Trim.Time = e.Sequence, e.Time
		m.trims = append(m.trims, *e.Trim)
	}
	m.entries = append(m.entries, e)
	return m.last
}

func (m *model) control(kind event.Kind, at place) {
	m.store(eventlog.Entry{Subject: event.Subject{Session: at.session, Life: at.life, Stream: at.stream, Kind: kind}})
}

// message stores an event.
func (m *model) message(at place, final bool) {
	seq := m.store(eventlog.Entry{Subject: event.Subject{Session: at.session, Life: at.life, Stream: at.stream}, Size: 10, Final: final})
	m.history[at] = append(m.history[at], seq)
}

// open opens a session, if its name has no opening.
func (m *model) open(name string) {
	if !m.has(event.Subject{Session: name, Kind: event.Open}) {
		m.opened++
		m.lives[name] = &modelLife{life: fmt.Sprint("l", m.opened), born: map[string]bool{}}
		m.control(event.Open, place{session: name})
	}
}

// publish stores an event of a session's life, after the birth of its stream, or of the empty
// life where there is none.
func (m *model) publish(name, stream string, final bool) {
	life := m.lives[name]
	if life == nil {
		m.message(place{name, "", stream}, final)
		return
	}
	at := place{name, life.life, stream}
	ended, born := life.born[stream]
	switch {
	case ended, !born && life.sealed:
		return
	case !born:
		m.control(event.Birth, at)
		life.born[stream] = false
	}
	m.message(at, final)
}

// bearAgain stores a birth that there is already, as an ingest does that does not know it.
func (m *model) bearAgain(name, stream string) {
	if life := m.lives[name]; life != nil && !life.sealed {
		if _, born := life.born[stream]; born {
			m.control(event.Birth, place{name, life.life, stream})
		}
	}
}

func (m *model) endStream(name, stream string) {
	if life := m.lives[name]; life != nil {
		if ended, born := life.born[stream]; born && !ended {
			m.control(event.End, place{name, life.life, stream})
			life.born[stream] = true
		}
	}
}

// endSession does the next step of an end.
func (m *model) endSession(name string) {
	life := m.lives[name]
	switch {
	case life == nil || !life.ended.IsZero():
		return
	case !life.sealed:
		m.control(event.Seal, place{name, life.life, ""})
		life.sealed = true
		return
	}
	for _, stream := range slices.Sorted(maps.Keys(life.born)) {
		m.endStream(name, stream)
	}
	m.control(event.End, place{name, life.life, ""})
	life.ended = m.now
}

func (m *model) clear(name, stream string) {
	if life := m.lives[name]; life != nil {
		m.control(event.Clear, place{name, life.life, stream})
	}
}

// rewrite stores a control entry again.
func (m *model) rewrite(c Copying) uint64 {
	i, there := m.find(c.Seq)
	if !there {
		return 0
	}
	e := m.entries[i]
	e.Copy, e.Again = c.Birth, true
	m.copies = append(m.copies, modelCopy{c.Seq, m.now.Add(time.Millisecond)})
	return m.store(e)
}

func (m *model) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(m.entries, seq, func(e eventlog.Entry, seq uint64) int { return int(e.Sequence) - int(seq) }) //nolint:gosec // small
}

// Has reports whether there is an entry of a subject.
func (m *model) has(s event.Subject) bool {
	return slices.ContainsFunc(m.entries, func(e eventlog.Entry) bool { return e.Subject == s })
}

// delete removes one entry.
func (m *model) delete(seq uint64) {
	if i, there := m.find(seq); there {
		m.entries = slices.Delete(slices.Clone(m.entries), i, i+1)
	}
	m.setFirst()
}

// purge moves the floor.
func (m *model) purge(before uint64) {
	i, _ := m.find(before)
	m.entries = slices.Clone(m.entries[i:])
	m.setFirst()
}

func (m *model) setFirst() {
	m.first = m.last + 1
	if len(m.entries) > 0 {
		m.first = m.entries[0].Sequence
	}
}

// next returns the oldest entry after a sequence.
func (m *model) next(after uint64) (eventlog.Entry, bool) {
	i, _ := m.find(after + 1)
	if i == len(m.entries) {
		return eventlog.Entry{}, false
	}
	return m.entries[i], true
}

// trimmed reports whether trims up to a sequence remove an event.
func (m *model) trimmed(at place, seq, through uint64) bool {
	return slices.ContainsFunc(m.trims, func(t eventlog.Trim) bool {
		return t.Sequence <= through && t.Session == at.session && t.Life == at.life && (t.Stream == at.stream || t.Stream == "") && seq <= t.UpTo
	})
}

// named reports whether a trim has a sequence on its list.
func (m *model) named(seq uint64) bool {
	return slices.ContainsFunc(m.trims, func(t eventlog.Trim) bool { return contains(t.Listed, seq) })
}

// checkDelete checks that an entry may be deleted.
func (m *model) checkDelete(t *rapid.T, seq uint64, settled time.Duration) {
	if !slices.ContainsFunc(m.trims, func(t eventlog.Trim) bool { return contains(t.Listed, seq) && m.now.Sub(t.Time) >= settled }) {
		t.Fatalf("%d is deleted, and was not announced long enough ago", seq)
	}
}

// checkFloor checks the remaining entries after the floor has moved: all that are younger than
// the maximum age, those that were copied a moment ago, and the control entries of lives, streams
// and ends.
func (m *model) checkFloor(t *rapid.T, before []eventlog.Entry, r Rules, ttl time.Duration) {
	for _, e := range before {
		if e.Sequence >= m.first {
			break
		}
		if e.Subject.Kind == event.Message && r.MaxAge > 0 && m.now.Sub(e.Time) < r.MaxAge {
			t.Fatalf("the event at %d is %s old, and the floor is at %d", e.Sequence, m.now.Sub(e.Time), m.first)
		}
		if slices.ContainsFunc(m.copies, func(c modelCopy) bool { return c.original == e.Sequence && m.now.Sub(c.at) < r.Settled() }) {
			t.Fatalf("the floor is at %d, and %d was copied a moment ago", m.first, e.Sequence)
		}
	}
	m.checkLives(t, ttl)
}

func (m *model) checkLives(t *rapid.T, ttl time.Duration) {
	for name, life := range m.lives {
		opening := m.has(event.Subject{Session: name, Kind: event.Open})
		want := func(kind event.Kind, stream string) {
			t.Helper()
			if !m.has(event.Subject{Session: name, Life: life.life, Stream: stream, Kind: kind}) {
				t.Fatalf("%s of %s/%s/%s is gone (opening there: %t)", kind, name, life.life, stream, opening)
			}
		}
		over := !life.ended.IsZero()
		if !opening && (!over || m.now.Sub(life.ended) < ttl) {
			t.Fatalf("the opening of %s is gone: %+v", name, life)
		}
		if over && opening {
			want(event.Seal, "")
			want(event.End, "")
		}
		if over && m.now.Sub(life.ended) >= ttl {
			continue
		}
		for stream, ended := range life.born {
			if ended {
				want(event.End, stream)
			} else {
				want(event.Birth, stream)
			}
		}
	}
}
