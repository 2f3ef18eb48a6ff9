package janitor

import (
	"reflect"
	"testing"
	"time"

	"rejoin/shared/session"
)

func TestDuties(t *testing.T) {
	cfg := Config{CloseAfter: 10 * time.Second, TombstoneTTL: time.Hour}
	rec := func(name, stream string, state session.State, age time.Duration) session.Record {
		r := session.Record{Session: name, Stream: stream, State: state}
		if state != session.Open {
			r.Ended = noon.Add(-age)
		}
		return r
	}
	for _, test := range []struct {
		name    string
		records []session.Record
		inLog   map[string]presence
		want    []duty
	}{
		{"nothing", nil, nil, nil},
		{"only in the log", nil, map[string]presence{"s": present}, []duty{{register, session.Record{Session: "s"}}}},
		{"only in the log and ended", nil, map[string]presence{"s": ended}, nil},
		{"open and in the log", []session.Record{rec("s", "", session.Open, 0)}, map[string]presence{"s": present}, nil},
		{"open and not in the log", []session.Record{rec("s", "", session.Open, 0)}, nil, nil},
		{"a tombstone and in the log", []session.Record{rec("s", "", session.Closed, 2*time.Hour)}, map[string]presence{"s": present}, nil},
		{"closing", []session.Record{rec("s", "", session.Closing, 9*time.Second)}, nil, nil},
		{"closing for too long", []session.Record{rec("s", "", session.Closing, 10*time.Second)}, nil, []duty{{finish, rec("s", "", session.Closing, 10*time.Second)}}},
		{
			"a stream closing for too long",
			[]session.Record{rec("s", "", session.Open, 0), rec("s", "a", session.Closing, time.Minute)},
			nil,
			[]duty{{finish, rec("s", "a", session.Closing, time.Minute)}},
		},
		{"a young tombstone", []session.Record{rec("s", "", session.Closed, time.Minute)}, nil, nil},
		{
			"an old tombstone takes its streams along, and goes last",
			[]session.Record{rec("s", "", session.Closed, time.Hour), rec("s", "a", session.Closed, time.Hour), rec("s", "b", session.Closing, time.Hour)},
			nil,
			[]duty{{remove, rec("s", "b", session.Closing, time.Hour)}, {remove, rec("s", "a", session.Closed, time.Hour)}, {remove, rec("s", "", session.Closed, time.Hour)}},
		},
		{"an old tombstone with something left in the log", []session.Record{rec("s", "", session.Closed, time.Hour)}, map[string]presence{"s": ended}, nil},
		{"a stream without a session", []session.Record{rec("s", "a", session.Closed, time.Minute)}, nil, []duty{{remove, rec("s", "a", session.Closed, time.Minute)}}},
		{"a stream whose session may be on its way", []session.Record{rec("s", "a", session.Closed, time.Second)}, nil, nil},
		{
			"a closed stream of an open session",
			[]session.Record{rec("s", "", session.Open, 0), rec("s", "a", session.Closed, 2*time.Hour)},
			nil, nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := duties(test.records, test.inLog, cfg, noon); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}
