package ask

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/session"
)

var midday = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// many makes sessions, of which every second is in the log, and some only there.
func many(n int) ([]session.Record, map[string]ledger.Retained) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same every time
	records, inLog := make([]session.Record, 0, n), map[string]ledger.Retained{}
	for i := range n {
		name := fmt.Sprint("session-", i)
		life := event.LifeKey(name, "")
		if i%10 > 0 {
			rec := session.New(name, "", nil, midday)
			records = append(records, rec)
			if i%10 == 1 { // events of an earlier life
				inLog[life] = ledger.Retained{Events: 1000, Bytes: 1000, Newest: midday.Unix()}
			}
			life = event.LifeKey(name, rec.Life)
		}
		if i%10 == 0 || i%2 == 0 {
			inLog[life] = ledger.Retained{Events: random.IntN(100) + 1, Bytes: random.Int64N(1000), Newest: midday.Unix() + random.Int64N(100)}
		}
	}
	return records, inLog
}

func TestList_Pages(t *testing.T) {
	const sessions = 500
	for _, by := range Orders {
		q, all, next := List{Limit: 7, Order: by}, []Row(nil), true
		for next {
			page := q.Page(many(sessions))
			if len(page.Rows) == 0 || len(page.Rows) > q.Limit || page.Total != sessions {
				t.Fatalf("by %q: a page of %d, of %d", by, len(page.Rows), page.Total)
			}
			all = append(all, page.Rows...)
			last := page.Rows[len(page.Rows)-1]
			at, ok := q.Place(q.Next(last))
			if !ok || by != ByName && at != last {
				t.Fatalf("by %q: the next page is after %+v", by, at)
			}
			q.After, next = &at, page.More
		}
		names := map[string]bool{}
		for _, at := range all {
			names[at.Name] = true
		}
		if len(all) != sessions || len(names) != sessions || !slices.IsSortedFunc(all, compareRows) {
			t.Errorf("by %q: %d sessions, %d names", by, len(all), len(names))
		}
	}
}

func BenchmarkListPage(b *testing.B) {
	records, inLog := many(100_000)
	for _, by := range []Order{ByName, ByBytes, ByActivity} {
		b.Run(fmt.Sprint("by=", by), func(b *testing.B) {
			q := List{Limit: MaxRows, Order: by}
			for b.Loop() {
				of := make(map[string]ledger.Retained)
				for name, h := range inLog {
					of[name] = h
				}
				if page := q.Page(records, of); len(page.Rows) != MaxRows || !page.More {
					b.Fatal(len(page.Rows), page.More)
				}
			}
		})
	}
}

// The pages of janitors that hold parts of the sessions are those of one that has all.
func TestMerge_PagesOfAllJanitors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "sessions")
		q := List{
			Limit: rapid.IntRange(1, 12).Draw(t, "limit"), Order: rapid.SampledFrom(Orders).Draw(t, "order"),
			State: rapid.SampledFrom([]session.State{"", session.Open, session.Closed}).Draw(t, "state"), Contains: rapid.SampledFrom([]string{"", "1"}).Draw(t, "contains"),
		}
		records, inLog := many(n)
		for i := range records {
			if rapid.Bool().Draw(t, "closed") {
				records[i].State = session.Closed
			}
		}
		for life, h := range inLog { // sessions that are as large as others
			h.Events, h.Bytes, h.Newest = h.Events%4, h.Bytes%4, h.Newest%4
			inLog[life] = h
		}
		of := make([]int, n) // which janitor holds a session
		for i := range of {
			of[i] = rapid.IntRange(0, 2).Draw(t, "janitor")
		}
		holder := func(name string) int {
			var i int
			_, _ = fmt.Sscanf(name, "session-%d", &i)
			return of[i]
		}
		for more := true; more; {
			whole := q.Page(slices.Clone(records), maps.Clone(inLog))
			var pages []Page
			for j := range 3 {
				has, held := []session.Record{}, map[string]ledger.Retained{}
				for _, r := range records {
					if holder(r.Session) == j {
						has = append(has, r)
					}
				}
				for life, h := range inLog {
					if name, _ := event.ParseLifeKey(life); holder(name) == j {
						held[life] = h
					}
				}
				pages = append(pages, q.Page(has, held))
			}
			if got := q.Merge(pages); !slices.Equal(got.Rows, whole.Rows) || got.More != whole.More || got.Total != whole.Total {
				t.Fatalf("merged %+v, want %+v", got, whole)
			}
			if more = whole.More; more {
				q.After = &whole.Rows[len(whole.Rows)-1]
			}
		}
	})
}
