package janitor

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rejoin/shared/event"
	"rejoin/shared/session"
)

// order is what the list of sessions is sorted by.
type order string

const (
	byName     order = ""
	byBytes    order = "bytes"
	byEvents   order = "events"
	byActivity order = "activity"
)

// row is a session's place in the list.
type row struct {
	key  int64 // the largest come first; 0 when sorted by name
	name string
}

func compareRows(a, b row) int {
	return cmp.Or(cmp.Compare(b.key, a.key), strings.Compare(a.name, b.name))
}

// held is what the ledger has of a session.
type held struct {
	events int
	bytes  int64
	newest int64 // see account
}

// held returns what the ledger has of every life with events.
func (l *ledger) held(of map[string]held) {
	for key, a := range l.accounts {
		if a.events > 0 {
			of[key] = held{a.events, a.bytes, int64(a.last)}
		}
	}
}

// lifeOf returns the life of a session that was published to last, for a session that is
// not in the index.
func (l *ledger) lifeOf(session string) (life string) {
	newest := uint32(0)
	for key, a := range l.accounts {
		if name, of := event.ParseLifeKey(key); name == session && a.last >= newest {
			life, newest = of, a.last
		}
	}
	return life
}

// listQuery are the parameters of GET /v1/sessions.
type listQuery struct {
	limit int
	state session.State // empty: all
	order order
	// contains is a part of the names; clients asks for the numbers of clients.
	contains string
	clients  bool
	after    *row // nil: from the beginning
}

// rows returns the sessions of a page, those of the index and those that are only in the
// log, and whether there are more, given what the log has of each life. It empties inLog.
// A page takes a look at each session, and sorts no more than it shows.
func (q listQuery) rows(records []session.Record, inLog map[string]held) (page []row, more bool) {
	f := firsts[row]{n: q.limit, compare: compareRows}
	add := func(r session.Record, h held) {
		at := row{q.key(r, h), r.Session}
		if (q.state == "" || r.State == q.state) && strings.Contains(r.Session, q.contains) && (q.after == nil || compareRows(*q.after, at) < 0) {
			f.add(at)
		}
	}
	for i := range records {
		r := &records[i]
		life := event.LifeKey(r.Session, r.Life)
		add(*r, inLog[life])
		delete(inLog, life)
	}
	unknown := map[string]held{} // by session
	for life, h := range inLog {
		name, _ := event.ParseLifeKey(life)
		if h.newest >= unknown[name].newest {
			unknown[name] = h
		}
	}
	clear(inLog)
	if len(unknown) > 0 {
		for i := range records { // what is left of earlier lives
			delete(unknown, records[i].Session)
		}
	}
	for name, h := range unknown {
		add(session.Record{Session: name, State: session.Open}, h)
	}
	return f.all()
}

func (q listQuery) key(r session.Record, h held) int64 {
	switch q.order {
	case byBytes:
		return h.bytes
	case byEvents:
		return int64(h.events)
	case byActivity:
		return max(r.Created.UnixMicro(), r.Ended.UnixMicro(), h.newest*1e6)
	default:
		return 0
	}
}

// next returns the value of after for the page behind a row.
func (q listQuery) next(at row) string {
	if q.order == byName {
		return at.name
	}
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %s", q.order, at.key, at.name))
}

// place reads what next has made.
func (q listQuery) place(text string) (row, bool) {
	if q.order == byName {
		return row{0, text}, true
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	parts := strings.SplitN(string(data), " ", 3)
	if err != nil || len(parts) != 3 || parts[0] != string(q.order) {
		return row{}, false
	}
	key, err := strconv.ParseInt(parts[1], 10, 64)
	return row{key, parts[2]}, err == nil
}

// firsts keeps the first n of what is added, in some order.
type firsts[T any] struct {
	n       int
	compare func(a, b T) int
	kept    []T
	more    bool
}

func (f *firsts[T]) add(one T) {
	if f.kept = append(f.kept, one); len(f.kept) >= 2*f.n+2 {
		f.cut()
	}
}

func (f *firsts[T]) cut() {
	slices.SortFunc(f.kept, f.compare)
	if len(f.kept) > f.n {
		f.kept, f.more = f.kept[:f.n], true
	}
}

// beyond reports whether it is known that one would not be kept.
func (f *firsts[T]) beyond(one T) bool { return f.more && f.compare(f.kept[f.n-1], one) < 0 }

// all returns what is kept, in order, and whether there was more.
func (f *firsts[T]) all() (kept []T, more bool) {
	f.cut()
	return f.kept, f.more
}
