package ask

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"rejoin/shared/inspect"
	"rejoin/shared/must"
)

func TestParse_Invalid(t *testing.T) {
	for _, data := range []string{
		"", "[]", "{}", `{"about":"all","partitions":[0]}`, `{"about":"sweep"}`, `{"about":"sweep","partitions":[-1]}`,
		`{"about":"rows","partitions":[0]}`, `{"about":"rows","partitions":[0],"list":{"limit":0}}`, `{"about":"rows","partitions":[0],"list":{"limit":1001}}`,
		`{"about":"rows","partitions":[0],"list":{"limit":1,"order":"name"}}`, `{"about":"rows","partitions":[0],"list":{"limit":1,"state":"dead"}}`,
		`{"about":"detail","partitions":[0]}`, `{"about":"detail","partitions":[0],"session":"*"}`, `{"about":"limits","partitions":[0],"limit":1001}`,
		`{"about":"limits","partitions":[0],"share":101}`, `{"about":"infos","partitions":[0],"sessions":[""]}`, `{"about":"cursors","partitions":[0],"cursors":[{"session":""}]}`,
	} {
		if _, err := Parse([]byte(data)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, data := range []string{
		"", "{}", `{"about":"sweep","partitions":[0,1]}`, `{"about":"rows","partitions":[3],"list":{"limit":9,"order":"bytes","state":"open","contains":"a","after":{"key":3,"name":"s"}}}`,
		`{"about":"infos","partitions":[0],"sessions":["a","b"]}`, `{"about":"timeline","partitions":[0],"session":"s","limit":5,"cursors":[{"session":"s","sequence":3,"time":"2026-01-01T00:00:00Z"}]}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := Parse(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if len(q.Partitions) == 0 || slices.Min(q.Partitions) < 0 || len(q.Sessions) > MaxRows || q.Limit < 0 || q.Limit > MaxRows || len(q.Cursors) > inspect.MaxItems || q.About == Rows && q.List == nil {
			t.Fatalf("%+v is taken", q)
		}
		again := must.Value(json.Marshal(q))(t)
		if _, err := Parse(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}

func TestLacking_NamesPartitions(t *testing.T) {
	for want, l := range map[string]Lacking{
		"No janitor answers for partition 3.":                                                          {Unanswered: []int{3}},
		"No janitor answers for partitions 0-2, 4-5, 9.":                                               {Unanswered: []int{9, 4, 2, 1, 0, 5}},
		"The janitor has not read the whole log yet: partitions 1-2.":                                  {Incomplete: []int{1, 2}},
		"No janitor answers for partition 0. The janitor has not read the whole log yet: partition 7.": {Unanswered: []int{0}, Incomplete: []int{7}},
		"NATS is unavailable, and other janitors hold partitions 4-6.":                                 {Unanswered: []int{6, 5, 4}, Disconnected: true},
	} {
		if got := l.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
