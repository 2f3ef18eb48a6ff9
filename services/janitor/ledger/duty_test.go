package ledger

import (
	"reflect"
	"testing"
	"time"

	"rejoin/shared/session"
)

func TestDuties(t *testing.T) {
	registered := func(life string) session.Record {
		return session.Record{Session: "s", Life: life, State: session.Open, Revision: 1}
	}
	tombstone := func(age time.Duration) session.Record {
		return session.Record{Session: "s", Life: "x", State: session.Closed, Ended: noon.Add(-age), Revision: 1}
	}
	unread, read := Opening{Seq: 20, First: 10}, Opening{Seq: 20, First: 10, Life: "x", Known: true}
	in := func(o Opening, lives ...LoggedLife) LoggedSession { return LoggedSession{o, lives} }
	living := LoggedLife{Life: "x", first: 11, Events: true}
	sealed := func(age time.Duration) LoggedLife {
		return LoggedLife{Life: "x", first: 11, sealed: true, since: noon.Add(-age)}
	}
	over := sealed(time.Minute)
	over.ended = true
	unsealed := over
	unsealed.unsealed = true
	finishes := func(life string) []Duty { return []Duty{{Finish, session.Record{Session: "s", Life: life}}} }
	repairs := func(r session.Record) []Duty { return []Duty{{Repair, r}} }
	for _, test := range []struct {
		name   string
		record session.Record // without a revision: none
		in     LoggedSession
		want   []Duty
	}{
		{"nothing", session.Record{}, in(Opening{}), nil},
		{"open and in the log", registered("x"), in(unread, living), nil},
		{"open and without events", registered("x"), in(unread), nil},
		{"open and not in the log", registered("x"), in(Opening{}), nil},
		{"events without an opening and a record", session.Record{}, in(Opening{}, LoggedLife{Events: true}), nil},

		{"an opening without a record", session.Record{}, in(unread), repairs(session.Record{Session: "s"})},
		{"the record of a life of before the opening", registered("x"), in(unread, LoggedLife{Life: "x", first: 9}), repairs(registered("x"))},
		{"the record of another life than the one that is published to", registered("y"), in(unread, living), repairs(registered("y"))},
		{"the opening says so too", registered("y"), in(read, living), repairs(registered("y"))},
		{"the opening says no", registered("x"), in(read, living, LoggedLife{Events: true, first: 12}), nil},
		{"events without an opening beside it", registered("x"), in(unread, living, LoggedLife{Events: true, first: 12}), nil},
		{"a tombstone, and the log has no seal", tombstone(0), in(read, living), repairs(tombstone(0))},
		{"a life has ended and its opening is not read", tombstone(0), in(unread, over), repairs(tombstone(0))},

		{"members that were changed since", registered("x"), in(Opening{Seq: 20, First: 10, changes: 1}, living), repairs(registered("x"))},
		{"members that were changed as the registry says", session.Record{Session: "s", Life: "x", State: session.Open, Revision: 1, Changes: 1}, in(Opening{Seq: 20, First: 10, changes: 1}, living), nil},

		{"being ended", registered("x"), in(unread, sealed(FinishAfter-1)), nil},
		{"being ended for too long", registered("x"), in(unread, sealed(FinishAfter)), finishes("x")},
		{"ended, and the registry says open", registered("x"), in(read, over), finishes("x")},
		{"replaced", registered("x"), in(read, living, LoggedLife{Life: "y", first: 3, Events: true}), finishes("y")},
		{"ended, and its seal is lost", tombstone(0), in(read, unsealed), finishes("x")},
		{"ended, and the floor has taken its seal", tombstone(0), in(Opening{}, unsealed), nil},
		{"replaced, and published to late", registered("x"), in(read, living, LoggedLife{Life: "y", first: 12, Events: true}), finishes("y")},
		{"replaced and ended", registered("x"), in(read, living, LoggedLife{Life: "y", first: 3, sealed: true, ended: true}), nil},

		{"a young tombstone", tombstone(time.Minute), in(Opening{}), nil},
		{"an old tombstone", tombstone(time.Hour), in(Opening{}), []Duty{{Remove, tombstone(time.Hour)}}},
		{"an old tombstone with its life in the log", tombstone(time.Hour), in(Opening{}, over), nil},
		{"an old tombstone with the empty life in the log", tombstone(time.Hour), in(Opening{}, LoggedLife{Events: true}), nil},
		{"an old tombstone with another life in the log", tombstone(time.Hour), in(Opening{}, LoggedLife{Life: "y"}), []Duty{{Remove, tombstone(time.Hour)}}},
		{"an old tombstone with its opening in the log", tombstone(time.Hour), in(read, over), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var records []session.Record
			if test.record.Revision > 0 {
				records = append(records, test.record)
			}
			inLog := map[string]LoggedSession{}
			if test.in.Opening.Seq > 0 || len(test.in.Lives) > 0 {
				inLog["s"] = test.in
			}
			if got := Duties(records, inLog, always(time.Hour), FinishAfter, noon, noon); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// The log forgets a life by its server's clock, and the registry must not have it for longer.
func TestDuties_OwnClockIsWrong(t *testing.T) {
	closed := session.Record{Session: "s", Life: "l", State: session.Closed, Ended: noon.Add(-time.Hour)}
	for _, own := range []time.Time{noon.Add(-2 * time.Hour), noon.Add(2 * time.Hour)} {
		if got := Duties([]session.Record{closed}, nil, always(time.Hour), FinishAfter, own, noon); len(got) != 1 || got[0].Task != Remove {
			t.Errorf("at %s: %+v", own, got)
		}
		if got := Duties([]session.Record{closed}, nil, always(time.Hour), FinishAfter, own, noon.Add(-time.Second)); len(got) != 0 {
			t.Errorf("at %s, too early: %+v", own, got)
		}
	}
}

func TestUnheard(t *testing.T) {
	record := func(life string, changes uint64) session.Record {
		return session.Record{Session: "s", Life: life, Changes: changes}
	}
	unread, read, other := Opening{Seq: 1, changes: 2}, Opening{Seq: 1, Life: "x", Known: true, changes: 2}, Opening{Seq: 1, Life: "y", Known: true, changes: 2}
	for _, test := range []struct {
		name    string
		opening Opening
		life    string
		record  session.Record
		want    bool
	}{
		{"no opening", Opening{}, "x", session.Record{}, false},
		{"the empty life", unread, "", session.Record{}, false},
		{"no record", read, "x", session.Record{}, true},
		{"no record, and an opening that may be the life's", unread, "x", session.Record{}, true},
		{"no record, and another life's opening", other, "x", session.Record{}, false},
		{"an older record", read, "x", record("x", 1), true},
		{"an older record, as the opening's header says", unread, "x", record("x", 1), true},
		{"the record of before", read, "x", record("w", 2), true},
		{"the same", read, "x", record("x", 2), false},
		{"a newer record", read, "x", record("x", 3), false},
		{"the record of a life that was replaced", other, "x", record("x", 1), false},
	} {
		l := New()
		if test.opening.Seq > 0 {
			l.openings["s"] = &test.opening
		}
		if got := l.Unheard("s", test.life, test.record); got != test.want {
			t.Errorf("%s: it is %t", test.name, got)
		}
	}
}
