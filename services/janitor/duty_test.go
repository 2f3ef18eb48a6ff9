package janitor

import (
	"reflect"
	"testing"
	"time"

	"rejoin/shared/session"
)

func TestDuties(t *testing.T) {
	indexed := func(life string) session.Record {
		return session.Record{Session: "s", Life: life, State: session.Open, Revision: 1}
	}
	tombstone := func(age time.Duration) session.Record {
		return session.Record{Session: "s", Life: "x", State: session.Closed, Ended: noon.Add(-age), Revision: 1}
	}
	unread, read := opening{seq: 20, first: 10}, opening{seq: 20, first: 10, life: "x", known: true}
	in := func(o opening, lives ...loggedLife) loggedSession { return loggedSession{o, lives} }
	living := loggedLife{life: "x", first: 11, events: true}
	sealed := func(age time.Duration) loggedLife {
		return loggedLife{life: "x", first: 11, sealed: true, since: noon.Add(-age)}
	}
	over := sealed(time.Minute)
	over.ended = true
	unsealed := over
	unsealed.unsealed = true
	finishes := func(life string) []duty { return []duty{{finish, session.Record{Session: "s", Life: life}}} }
	repairs := func(r session.Record) []duty { return []duty{{repair, r}} }
	for _, test := range []struct {
		name   string
		record session.Record // without a revision: none
		in     loggedSession
		want   []duty
	}{
		{"nothing", session.Record{}, in(opening{}), nil},
		{"open and in the log", indexed("x"), in(unread, living), nil},
		{"open and without events", indexed("x"), in(unread), nil},
		{"open and not in the log", indexed("x"), in(opening{}), nil},
		{"events without an opening and a record", session.Record{}, in(opening{}, loggedLife{events: true}), nil},

		{"an opening without a record", session.Record{}, in(unread), repairs(session.Record{Session: "s"})},
		{"the record of a life of before the opening", indexed("x"), in(unread, loggedLife{life: "x", first: 9}), repairs(indexed("x"))},
		{"the record of another life than the one that is published to", indexed("y"), in(unread, living), repairs(indexed("y"))},
		{"the opening says so too", indexed("y"), in(read, living), repairs(indexed("y"))},
		{"the opening says no", indexed("x"), in(read, living, loggedLife{events: true, first: 12}), nil},
		{"events without an opening beside it", indexed("x"), in(unread, living, loggedLife{events: true, first: 12}), nil},
		{"a tombstone, and the log has no seal", tombstone(0), in(read, living), repairs(tombstone(0))},
		{"a life has ended and its opening is not read", tombstone(0), in(unread, over), repairs(tombstone(0))},

		{"members that were changed since", indexed("x"), in(opening{seq: 20, first: 10, changes: 1}, living), repairs(indexed("x"))},
		{"members that were changed as the index says", session.Record{Session: "s", Life: "x", State: session.Open, Revision: 1, Changes: 1}, in(opening{seq: 20, first: 10, changes: 1}, living), nil},

		{"being ended", indexed("x"), in(unread, sealed(finishAfter-1)), nil},
		{"being ended for too long", indexed("x"), in(unread, sealed(finishAfter)), finishes("x")},
		{"ended, and the index says open", indexed("x"), in(read, over), finishes("x")},
		{"replaced", indexed("x"), in(read, living, loggedLife{life: "y", first: 3, events: true}), finishes("y")},
		{"ended, and its seal is lost", tombstone(0), in(read, unsealed), finishes("x")},
		{"ended, and the floor has taken its seal", tombstone(0), in(opening{}, unsealed), nil},
		{"replaced, and published to late", indexed("x"), in(read, living, loggedLife{life: "y", first: 12, events: true}), finishes("y")},
		{"replaced and ended", indexed("x"), in(read, living, loggedLife{life: "y", first: 3, sealed: true, ended: true}), nil},

		{"a young tombstone", tombstone(time.Minute), in(opening{}), nil},
		{"an old tombstone", tombstone(time.Hour), in(opening{}), []duty{{remove, tombstone(time.Hour)}}},
		{"an old tombstone with its life in the log", tombstone(time.Hour), in(opening{}, over), nil},
		{"an old tombstone with the empty life in the log", tombstone(time.Hour), in(opening{}, loggedLife{events: true}), nil},
		{"an old tombstone with another life in the log", tombstone(time.Hour), in(opening{}, loggedLife{life: "y"}), []duty{{remove, tombstone(time.Hour)}}},
		{"an old tombstone with its opening in the log", tombstone(time.Hour), in(read, over), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var records []session.Record
			if test.record.Revision > 0 {
				records = append(records, test.record)
			}
			inLog := map[string]loggedSession{}
			if test.in.opening.seq > 0 || len(test.in.lives) > 0 {
				inLog["s"] = test.in
			}
			if got := duties(records, inLog, time.Hour, finishAfter, noon, noon); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// The log forgets a life by its server's clock, and the index must not have it for longer.
func TestDuties_OwnClockIsWrong(t *testing.T) {
	closed := session.Record{Session: "s", Life: "l", State: session.Closed, Ended: noon.Add(-time.Hour)}
	for _, own := range []time.Time{noon.Add(-2 * time.Hour), noon.Add(2 * time.Hour)} {
		if got := duties([]session.Record{closed}, nil, time.Hour, finishAfter, own, noon); len(got) != 1 || got[0].task != remove {
			t.Errorf("at %s: %+v", own, got)
		}
		if got := duties([]session.Record{closed}, nil, time.Hour, finishAfter, own, noon.Add(-time.Second)); len(got) != 0 {
			t.Errorf("at %s, too early: %+v", own, got)
		}
	}
}
