package janitor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"rejoin/services/janitor/ledger"
	"rejoin/shared/event"
	"rejoin/shared/session"
)

// many makes sessions, of which every second is in the log, and some only there.
func many(n int) ([]session.Record, map[string]ledger.Held) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same every time
	records, inLog := make([]session.Record, 0, n), map[string]ledger.Held{}
	for i := range n {
		name := fmt.Sprint("session-", i)
		life := event.LifeKey(name, "")
		if i%10 > 0 {
			rec := session.New(name, "", nil, midday)
			records = append(records, rec)
			if i%10 == 1 { // what is left of an earlier life
				inLog[life] = ledger.Held{Events: 1000, Bytes: 1000, Newest: midday.Unix()}
			}
			life = event.LifeKey(name, rec.Life)
		}
		if i%10 == 0 || i%2 == 0 {
			inLog[life] = ledger.Held{Events: random.IntN(100) + 1, Bytes: random.Int64N(1000), Newest: midday.Unix() + random.Int64N(100)}
		}
	}
	return records, inLog
}

func TestList_Pages(t *testing.T) {
	const sessions = 500
	for _, by := range []order{byName, byBytes, byEvents, byActivity} {
		var all []row
		q := listQuery{limit: 7, order: by}
		for more := true; more; {
			var page []row
			var total int
			if page, more, total = q.rows(many(sessions)); len(page) == 0 || len(page) > q.limit || total != sessions {
				t.Fatalf("by %q: a page of %d, of %d", by, len(page), total)
			}
			all = append(all, page...)
			at, ok := q.place(q.next(page[len(page)-1]))
			if !ok || by != byName && at != page[len(page)-1] {
				t.Fatalf("by %q: the next page is behind %+v", by, at)
			}
			q.after = &at
		}
		names := map[string]bool{}
		for _, at := range all {
			names[at.name] = true
		}
		if len(all) != sessions || len(names) != sessions || !slices.IsSortedFunc(all, compareRows) {
			t.Errorf("by %q: %d sessions, %d names", by, len(all), len(names))
		}
	}
}

func BenchmarkListPage(b *testing.B) {
	records, inLog := many(100_000)
	for _, by := range []order{byName, byBytes, byActivity} {
		b.Run(fmt.Sprint("by=", by), func(b *testing.B) {
			q := listQuery{limit: maxLimit, order: by}
			for b.Loop() {
				of := make(map[string]ledger.Held)
				for name, h := range inLog {
					of[name] = h
				}
				if page, more, _ := q.rows(records, of); len(page) != maxLimit || !more {
					b.Fatal(len(page), more)
				}
			}
		})
	}
}
