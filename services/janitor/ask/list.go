package janitor

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"rejoin/services/janitor/ledger"
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
// log, whether there are more, and how many there are on all pages, given what the log has
// of each life. It empties inLog.
// A page takes a look at each session, and sorts no more than it shows.
//
// 70 ms for 100,000 sessions sorted by size. An index that is kept in order would cost
// something with every event.
func (q listQuery) rows(records []session.Record, inLog map[string]ledger.Held) (page []row, more bool, total int) {
	f := ledger.Firsts[row]{N: q.limit, Compare: compareRows}
	add := func(r session.Record, h ledger.Held) {
		if q.state != "" && r.State != q.state || !strings.Contains(r.Session, q.contains) {
			return
		}
		total++
		if at := (row{q.key(r, h), r.Session}); q.after == nil || compareRows(*q.after, at) < 0 {
			f.Add(at)
		}
	}
	for i := range records {
		r := &records[i]
		life := event.LifeKey(r.Session, r.Life)
		add(*r, inLog[life])
		delete(inLog, life)
	}
	unknown := map[string]ledger.Held{} // by session
	for life, h := range inLog {
		name, _ := event.ParseLifeKey(life)
		if h.Newest >= unknown[name].Newest {
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
	page, more = f.All()
	return page, more, total
}

func (q listQuery) key(r session.Record, h ledger.Held) int64 {
	switch q.order {
	case byBytes:
		return h.Bytes
	case byEvents:
		return int64(h.Events)
	case byActivity:
		return max(r.Created.UnixMicro(), r.Ended.UnixMicro(), h.Newest*1e6)
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
