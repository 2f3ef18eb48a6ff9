package ask

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/session"
)

// MaxRows is the most sessions, or other items, of one answer.
const MaxRows = 1000

// Order is the order of the list of sessions.
type Order string

// The orders.
const (
	ByName     Order = ""
	ByBytes    Order = "bytes"
	ByEvents   Order = "events"
	ByActivity Order = "activity"
)

// Orders are all.
var Orders = []Order{ByName, ByBytes, ByEvents, ByActivity}

// Row is a session's place in the list.
type Row struct {
	Key  int64  `json:"key,omitempty"` // in descending order; 0 when sorted by name
	Name string `json:"name"`
}

func compareRows(a, b Row) int {
	return cmp.Or(cmp.Compare(b.Key, a.Key), strings.Compare(a.Name, b.Name))
}

// List is a page of the list of sessions.
type List struct {
	Limit int           `json:"limit"`           // 1 to [MaxRows]
	State session.State `json:"state,omitempty"` // empty: all
	Order Order         `json:"order,omitempty"`
	// Contains is a part of the names.
	Contains string `json:"contains,omitempty"`
	After    *Row   `json:"after,omitempty"` // nil: from the beginning
}

// check returns an error for a page that is not valid.
func (q List) check() error {
	switch {
	case q.Limit < 1 || q.Limit > MaxRows:
		return fmt.Errorf("%w: limit %d", ErrInvalid, q.Limit)
	case q.State != "" && q.State != session.Open && q.State != session.Closed:
		return fmt.Errorf("%w: state %q", ErrInvalid, q.State)
	case !slices.Contains(Orders, q.Order):
		return fmt.Errorf("%w: order %q", ErrInvalid, q.Order)
	}
	return nil
}

// Page is a page, or the part of it that one janitor has.
type Page struct {
	Rows  []Row `json:"rows,omitempty"`
	More  bool  `json:"more,omitempty"` // there are more after it
	Total int   `json:"total"`          // on all pages
}

// Merge returns the page of all janitors.
func (q List) Merge(pages []Page) (all Page) {
	f := ledger.Firsts[Row]{N: q.Limit, Compare: compareRows}
	for _, p := range pages {
		all.Total += p.Total
		all.More = all.More || p.More
		f.Add(p.Rows...)
	}
	var more bool
	all.Rows, more = f.All()
	all.More = (all.More || more) && len(all.Rows) > 0
	return all
}

// Page returns the sessions of a page, those of the registry and those that are only in the log,
// given the sums of each life in the log. It empties inLog.
// A page takes a look at each session, and sorts no more than it shows.
//
// 70 ms for 100,000 sessions sorted by size. An index that is kept in order would cost
// time with every event.
func (q List) Page(records []session.Record, inLog map[string]ledger.Retained) (page Page) {
	f := ledger.Firsts[Row]{N: q.Limit, Compare: compareRows}
	add := func(r session.Record, h ledger.Retained) {
		if q.State != "" && r.State != q.State || !strings.Contains(r.Session, q.Contains) {
			return
		}
		page.Total++
		if at := (Row{q.key(r, h), r.Session}); q.After == nil || compareRows(*q.After, at) < 0 {
			f.Add(at)
		}
	}
	for i := range records {
		r := &records[i]
		life := event.LifeKey(r.Session, r.Life)
		add(*r, inLog[life])
		delete(inLog, life)
	}
	unknown := map[string]ledger.Retained{} // by session
	for life, h := range inLog {
		name, _ := event.ParseLifeKey(life)
		if h.Events > 0 && h.Newest >= unknown[name].Newest {
			unknown[name] = h
		}
	}
	clear(inLog)
	if len(unknown) > 0 {
		for i := range records { // events of their earlier lives
			delete(unknown, records[i].Session)
		}
	}
	for name, h := range unknown {
		add(session.Record{Session: name, State: session.Open}, h)
	}
	page.Rows, page.More = f.All()
	return page
}

func (q List) key(r session.Record, h ledger.Retained) int64 {
	switch q.Order {
	case ByBytes:
		return h.Bytes
	case ByEvents:
		return int64(h.Events)
	case ByActivity:
		return max(r.Created.UnixMicro(), r.Ended.UnixMicro(), h.Newest*1e6)
	default:
		return 0
	}
}

// Next returns the value of after for the page after a row.
func (q List) Next(at Row) string {
	if q.Order == ByName {
		return at.Name
	}
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s %d %s", q.Order, at.Key, at.Name))
}

// Place reads the text that Next has made.
func (q List) Place(text string) (Row, bool) {
	if q.Order == ByName {
		return Row{0, text}, true
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	parts := strings.SplitN(string(data), " ", 3)
	if err != nil || len(parts) != 3 || parts[0] != string(q.Order) {
		return Row{}, false
	}
	key, err := strconv.ParseInt(parts[1], 10, 64)
	return Row{key, parts[2]}, err == nil
}
