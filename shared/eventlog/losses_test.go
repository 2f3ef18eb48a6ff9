package eventlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func announce(t *testing.T, l *eventlog.Log, stream string, upTo uint64, reason eventlog.Reason, removed ...uint64) uint64 {
	t.Helper()
	trim := eventlog.Trim{Session: "s", Life: "l", Stream: stream, UpTo: upTo, Reason: reason, Listed: removed}
	return must.Value(eventlogtest.Announce(waittest.Context(t), l, trim))(t).Sequence
}

// missing returns the losses of a stream as text.
func missing(t *testing.T, l *eventlog.Log, stream string, after uint64) string {
	t.Helper()
	all, _, err := l.LossesAfter(waittest.Context(t), l.Look, "s", "l", stream, after, 0)
	must.NoError(t, err)
	words := make([]string, 0, len(all))
	for _, m := range all {
		words = append(words, fmt.Sprintf("%s %s to %d, %t", m.Stream, m.Reason, m.UpTo, m.Certain))
	}
	slices.Sort(words)
	return strings.Join(words, "; ")
}

func wantMissing(t *testing.T, l *eventlog.Log, stream string, after uint64, want string) {
	t.Helper()
	if got := missing(t, l, stream, after); got != want {
		t.Errorf("%q after %d: %q, want %q", stream, after, got, want)
	}
}

func TestLossesAfter_Trims(t *testing.T) {
	_, l := single(t)
	for n := range 3 { // births at 1 and 2
		mustPublish(t, l, of("s", "a", n))
		mustPublish(t, l, of("s", "b", n))
	}
	want := func(stream string, after uint64, want string) { t.Helper(); wantMissing(t, l, stream, after, want) }
	want("a", 0, "")
	announce(t, l, "a", 5, eventlog.Trimmed, 2, 5)
	want("a", 0, "a trimmed to 5, true")
	want("a", 4, "a trimmed to 5, true")
	want("a", 5, "")
	want("b", 0, "")
	want("", 4, "a trimmed to 5, true")
	want("", 5, "")
	announce(t, l, "", 6, eventlog.Cleared)
	want("b", 5, "b cleared to 6, false")
	want("b", 6, "")
	want("a", 0, "a cleared to 6, false; a trimmed to 5, true")
	announce(t, l, "b", 4, eventlog.Cleared) // planned before the one of the life, and stored late
	want("b", 0, "b cleared to 4, true; b cleared to 6, false")
	want("b", 4, "b cleared to 6, false")
	want("b", 6, "")
	want("", 3, " cleared to 6, false; a trimmed to 5, true; b cleared to 4, true")
}

// A trim that a later version has written in a form of its own may have removed all events before it.
func TestLossesAfter_UnreadableTrim(t *testing.T) {
	_, l := single(t)
	for n := range 3 { // births at 1 and 2
		mustPublish(t, l, of("s", "a", n))
		mustPublish(t, l, of("s", "b", n))
	}
	announce(t, l, "a", 3, eventlog.Trimmed, 3)
	js := newJetStream(t, l)
	later := func(subject string) uint64 {
		t.Helper()
		msg := nats.NewMsg(subject)
		msg.Header.Set("Rejoin-Up-To", "later: 5")
		ack := must.Value(js.PublishMsg(waittest.Context(t), msg))(t)
		return ack.Sequence
	}
	at := later("mcp.0.s.l.=trim.a")
	for after, want := range map[uint64]string{0: fmt.Sprintf("a expired to %d, false", at-1), at - 1: "", at: ""} {
		wantMissing(t, l, "a", after, want)
		wantMissing(t, l, "", after, want)
	}
	wantMissing(t, l, "b", 0, "")
	at = later("mcp.0.s.l.=trim")
	wantMissing(t, l, "b", 0, fmt.Sprintf("b expired to %d, false", at-1))
}

// A janitor that was held up names sequences that have been assigned again since: the removed events are unknown.
func TestLossesAfter_TrimOfAnEarlierGeneration(t *testing.T) {
	_, l := single(t)
	for n := range 3 { // a birth at 1
		mustPublish(t, l, of("s", "a", n))
	}
	first := look(t, l).Generation().ID
	trim := eventlog.Trim{Session: "s", Life: "l", Stream: "a", UpTo: 3, Reason: eventlog.Trimmed, Generation: first}
	at := must.Value(eventlogtest.Announce(waittest.Context(t), l, trim))(t).Sequence
	for start, want := range map[uint64]eventlog.Loss{
		3: {Stream: "a", UpTo: at - 1, Reason: eventlog.Expired},
		4: {Stream: "a", UpTo: 3, Reason: eventlog.Trimmed, Certain: true},
	} {
		rolledBack := func(ctx context.Context, p int) (eventlog.State, error) {
			state, err := l.Look(ctx, p)
			state.Generations = append(slices.Clone(state.Generations), event.Generation{ID: "later", Start: start})
			return state, err
		}
		for _, stream := range []string{"a", ""} {
			if all, _, err := l.LossesAfter(waittest.Context(t), rolledBack, "s", "l", stream, 2, 0); err != nil || !slices.Equal(all, []eventlog.Loss{want}) {
				t.Errorf("%q, when the later one begins at %d: %v, %v", stream, start, all, err)
			}
		}
	}
}

// A janitor with an older ledger than another one hides no trim that the other has announced.
func TestAnnounce_OnlyBehindTheNewestTrim(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		for n := range 9 {
			mustPublish(t, l, of("s", "a", n))
		}
		trim := func(upTo uint64) eventlog.Trim {
			return eventlog.Trim{Session: "s", Life: "l", Stream: "a", UpTo: upTo, Reason: eventlog.Trimmed}
		}
		first := must.Value(l.Announce(waittest.Context(t), trim(3), 0))(t)
		second := must.Value(other.Announce(waittest.Context(t), trim(7), first.Sequence))(t)
		for _, follows := range []uint64{0, first.Sequence} {
			if _, err := l.Announce(waittest.Context(t), trim(5), follows); !errors.Is(err, eventlog.ErrConflict) {
				t.Errorf("after a trim that it does not know: %v", err)
			}
		}
		wantMissing(t, l, "a", 6, "a trimmed to 7, true")
		must.Value(l.Announce(waittest.Context(t), trim(8), second.Sequence))(t)
	})
}

// The floor may pass a trim once it was looked up: so the look comes after.
func TestLossesAfter_FloorMovesMeanwhile(t *testing.T) {
	_, l := single(t)
	for n := range 9 {
		mustPublish(t, l, of("s", "a", n))
	}
	announce(t, l, "a", 8, eventlog.Trimmed, 7, 8)
	before := look(t, l)
	for _, stream := range []string{"a", ""} {
		all, _, err := l.LossesAfter(waittest.Context(t), func(ctx context.Context, p int) (eventlog.State, error) {
			must.NoError(t, l.Purge(ctx, p, before.Last+1))
			return l.Look(ctx, p)
		}, "s", "l", stream, 6, 0)
		if err != nil || !slices.ContainsFunc(all, func(m eventlog.Loss) bool { return m.UpTo == before.Last }) {
			t.Errorf("%q: %+v, %v", stream, all, err)
		}
	}
}

// In a cluster the server that a page was read from may have moved the floor already, while the leader has not and
// shows the old one: the announced floor counts. The log here is the leader's in that moment.
func TestLossesAfter_FloorMovesOnAnotherServerFirst(t *testing.T) {
	_, l := inCluster(t)
	before := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "l"}))(t)
	var last uint64
	for n := range 3 {
		last = mustPublish(t, l, of("s", "t", n)).Sequence
	}
	msg := nats.NewMsg(event.FloorSubject(0))
	msg.Header.Set("Rejoin-Up-To", strconv.FormatUint(last-1, 10))
	must.Value(newJetStream(t, l).PublishMsg(waittest.Context(t), msg))(t)
	o := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "later", Life: "l"}))(t)
	must.NoError(t, l.Purge(waittest.Context(t), 0, 2)) // of a janitor that was paused: it hides no higher floor
	for _, test := range []struct {
		session, stream string
		after           uint64
		want            uint64
	}{
		{"s", "t", before.Sequence, last - 1},
		{"s", "", before.Sequence, last - 1},
		{"s", "t", last - 1, 0},
		{"later", "t", 0, 0}, // it has begun above the floor
	} {
		all, state, err := l.LossesAfter(waittest.Context(t), l.LookAfterRead, test.session, "l", test.stream, test.after, 0)
		var want []eventlog.Loss
		if test.want > 0 {
			want = []eventlog.Loss{{Stream: test.stream, UpTo: test.want, Reason: eventlog.Expired}}
		}
		if diff := cmp.Diff(want, all); err != nil || diff != "" {
			t.Errorf("%q of %s after %d: %s, %v", test.stream, test.session, test.after, diff, err)
		}
		if state.First != last || state.Last != o.Sequence {
			t.Errorf("the log is shown from %d to %d", state.First, state.Last)
		}
	}
}

func TestPurge_AnnouncedInACluster(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		log  *eventlog.Log
		want uint64
	}{
		{"cluster", replicated(t, natstest.StartCluster(t)), 1},
		{"alone", create(t, natstest.Start(t), one()), 0},
	} {
		for n := range 3 {
			mustPublish(t, test.log, of("s", "t", n))
		}
		must.NoError(t, test.log.Purge(waittest.Context(t), 0, 2))
		state := look(t, test.log)
		if newest, err := test.log.At(waittest.Context(t), 0, state.Last); err != nil || state.First != 2 || newest.PurgedTo != test.want {
			t.Errorf("%s: the floor is at %d, announced to %d, want %d, %v", test.name, state.First, newest.PurgedTo, test.want, err)
		}
	}
}

func TestLossesAfter_Floor(t *testing.T) {
	_, l := single(t)
	last := map[string]uint64{}
	for n := range 4 {
		last["quiet"] = mustPublish(t, l, of("s", "quiet", n)).Sequence
	}
	for n := range 4 {
		last["busy"] = mustPublish(t, l, of("s", "busy", n)).Sequence
	}
	purge := func(before uint64) {
		t.Helper()
		must.NoError(t, l.Purge(waittest.Context(t), 0, before))
	}
	rewrite := func(stream string, c *eventlog.BirthCopy) {
		t.Helper()
		must.Value(l.Rewrite(waittest.Context(t), event.Subject{Session: "s", Life: "l", Stream: stream, Kind: event.Birth}, 1, c))(t)
	}
	want := func(stream string, after uint64, want string) { t.Helper(); wantMissing(t, l, stream, after, want) }
	through := look(t, l).Last
	floor := last["busy"] - 1
	up := fmt.Sprint(floor - 1)
	purge(floor)
	want("quiet", last["quiet"], "quiet expired to "+up+", false")
	rewrite("quiet", &eventlog.BirthCopy{Newest: last["quiet"], NewestRemoved: last["quiet"] - 1, Through: through})
	rewrite("busy", &eventlog.BirthCopy{Newest: last["busy"], NewestRemoved: last["busy"] - 3, Through: through})
	want("quiet", last["quiet"], "")
	want("quiet", last["quiet"]-1, "quiet expired to "+up+", true")
	want("busy", last["busy"]-4, "busy expired to "+up+", true")
	want("busy", last["busy"]-3, "busy expired to "+up+", false")
	want("busy", floor-1, "")
	want("", floor-2, " expired to "+up+", false")
	// Events that a trim explains have not expired.
	trimmed := last["busy"] - 3
	announce(t, l, "busy", trimmed, eventlog.Trimmed, trimmed)
	want("busy", trimmed-1, fmt.Sprintf("busy expired to %s, false; busy trimmed to %d, true", up, trimmed))
	announce(t, l, "quiet", last["quiet"], eventlog.Cleared, last["quiet"])
	want("quiet", last["quiet"]-1, fmt.Sprintf("quiet cleared to %d, true", last["quiet"]))
	// The floor moves once it was looked at: no page lacks the events removed above the floor that was seen.
	_, err := l.Rewrite(waittest.Context(t), event.Subject{Session: "s", Life: "l", Stream: "busy", Kind: event.Birth}, 1,
		&eventlog.BirthCopy{Newest: last["busy"], NewestRemoved: floor, Through: look(t, l).Last})
	must.NoError(t, err)
	want("busy", floor-2, "busy expired to "+up+", false")
	// A publisher that does not know the births stores none that would hide their copies.
	late := openAt(t, l.Conn().ConnectedUrl())
	mustPublish(t, late, of("s", "quiet", 9))
	want("quiet", last["quiet"], "")
	// A janitor that was held up stores a copy from before the log lost its newest entries.
	rewrite("quiet", &eventlog.BirthCopy{Newest: last["quiet"], Through: through, Generation: "lost"})
	want("quiet", last["quiet"], "quiet expired to "+up+", false")
	rewrite("quiet", &eventlog.BirthCopy{Newest: last["quiet"], Through: through, Generation: look(t, l).Generation().ID})
	want("quiet", last["quiet"], "")
	// The birth's copy does not reach to the floor any more.
	last["busy"] = mustPublish(t, l, of("s", "busy", 9)).Sequence
	purge(last["busy"])
	want("quiet", last["quiet"], fmt.Sprintf("quiet expired to %d, false", last["busy"]-1))
}

// A life that was opened above the floor has lost nothing to it.
func TestLossesAfter_LifeAboveTheFloor(t *testing.T) {
	_, l := single(t)
	mustPublish(t, l, of("before", "t", 0))
	o := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "l"}))(t)
	must.NoError(t, l.Purge(waittest.Context(t), 0, o.Sequence))
	mustPublish(t, l, of("s", "t", 1))
	for _, stream := range []string{"t", ""} {
		wantMissing(t, l, stream, 0, "")
	}
	must.Value(l.Rewrite(waittest.Context(t), event.Subject{Session: "s", Kind: event.Open}, o.Sequence, nil))(t)
	must.NoError(t, l.Purge(waittest.Context(t), 0, o.Sequence+1))
	wantMissing(t, l, "t", 0, "t expired to 3, false") // the opening was written again
}

// A changed opening lies above the floor, and its life may have begun below it.
func TestLossesAfter_ChangedOpening(t *testing.T) {
	_, l := single(t)
	o := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "l"}))(t)
	mustPublish(t, l, of("s", "t", 1))
	o.Members, o.Changes = []string{"bob"}, 1
	o = must.Value(l.ChangeOpening(waittest.Context(t), o))(t)
	must.NoError(t, l.Purge(waittest.Context(t), 0, o.Sequence))
	wantMissing(t, l, "t", 1, fmt.Sprintf("t expired to %d, false", o.Sequence-1))
}

func TestEntry_TrimsAndCopies(t *testing.T) {
	_, l := single(t)
	at := announce(t, l, "a", 0, eventlog.Trimmed)
	e, err := l.At(waittest.Context(t), 0, at)
	must.NoError(t, err)
	if !e.Valid || e.Trim == nil || e.Trim.Sequence != at || e.Trim.Stream != "a" || e.Trim.Reason != eventlog.Trimmed || e.Trim.Time != e.Time {
		t.Errorf("%+v", e.Trim)
	}
	if e, err = l.At(waittest.Context(t), 0, announce(t, l, "", at+9, eventlog.Trimmed)); err != nil || e.Trim != nil {
		t.Errorf("a trim of what comes later is read as %+v, %v", e.Trim, err)
	}
	want := eventlog.BirthCopy{Newest: 7, NewestRemoved: 5, Through: 9}
	ack := must.Value(l.Rewrite(waittest.Context(t), event.Subject{Session: "s", Life: "l", Stream: "a", Kind: event.Birth}, 1, &want))(t)
	if e, err = l.At(waittest.Context(t), 0, ack.Sequence); err != nil || e.Copy == nil || *e.Copy != want || e.Subject.Kind != event.Birth {
		t.Errorf("%+v, %v", e, err)
	}
}

// An opening is written again only while it is the newest of its name.
func TestRewrite_Opening(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		o := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "l", Owner: "me"}))(t)
		s := event.Subject{Session: "s", Kind: event.Open}
		ack := must.Value(l.Rewrite(waittest.Context(t), s, o.Sequence, nil))(t)
		if got, err := other.Opening(waittest.Context(t), "s"); err != nil || got.Sequence != ack.Sequence || got.Life != "l" || got.Owner != "me" {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := l.Rewrite(waittest.Context(t), s, o.Sequence, nil); !errors.Is(err, eventlog.ErrConflict) {
			t.Errorf("an opening that another one follows: %v", err)
		}
	})
}

// A changed opening takes the place of the one that it was made from, and of no other. The
// janitor's copy has the number of its changes.
func TestChangeOpening(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		first := must.Value(l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "l", Owner: "me", Metadata: []byte(`{"a":1}`)}))(t)
		change := first
		change.Members, change.Changes = []string{"bob", "team-*"}, 1
		changed := must.Value(l.ChangeOpening(waittest.Context(t), change))(t)
		if changed.Sequence <= first.Sequence {
			t.Errorf("it lies at %d, after %d", changed.Sequence, first.Sequence)
		}
		if _, err := other.ChangeOpening(waittest.Context(t), change); !errors.Is(err, eventlog.ErrConflict) {
			t.Errorf("a change of an opening that another one follows: %v", err)
		}
		s := event.Subject{Session: "s", Kind: event.Open}
		copied := must.Value(l.Rewrite(waittest.Context(t), s, changed.Sequence, nil))(t)
		for _, sequence := range []uint64{changed.Sequence, copied.Sequence} {
			if e, err := other.At(waittest.Context(t), 0, sequence); err != nil || !e.Again || e.Changes != 1 || e.Began != first.Sequence {
				t.Errorf("%+v, %v", e, err)
			}
		}
		want := changed
		want.Sequence = copied.Sequence
		if got, err := other.Opening(waittest.Context(t), "s"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if life, _, err := other.LifeOf(waittest.Context(t), "s"); err != nil || life != "l" {
			t.Errorf("the life is %s, %v", life, err)
		}
		if _, err := l.OpenSession(waittest.Context(t), eventlog.Opening{Session: "s", Life: "m"}); !errors.Is(err, eventlog.ErrExists) {
			t.Errorf("another life was opened: %v", err)
		}
		// An opening that was lost is stored again, and is the first one of its name or none.
		lost := eventlog.Opening{Session: "t", Life: "l", Owner: "me", Changes: 1}
		must.Value(l.ChangeOpening(waittest.Context(t), lost))(t)
		if got, err := other.Opening(waittest.Context(t), "t"); err != nil || got.Began != 0 {
			t.Errorf("the life of a lost opening began at %d, %v", got.Began, err)
		}
		if _, err := l.ChangeOpening(waittest.Context(t), lost); !errors.Is(err, eventlog.ErrConflict) {
			t.Errorf("it was stored twice: %v", err)
		}
	})
}

// A later version may add members to an opening. Neither a change nor a copy by this one drops them.
func TestOpening_OfALaterVersion(t *testing.T) {
	eachPair(t, func(t *testing.T, l, other *eventlog.Log) {
		msg := nats.NewMsg("mcp.0.s.=open")
		msg.Data = []byte(`{"life":"l","owner":"me","readers":["eve"],"created":"2026-01-02T03:04:05Z"}`)
		msg.Header.Set("Rejoin-Later", "7")
		ack := must.Value(newJetStream(t, l).PublishMsg(waittest.Context(t), msg))(t)
		s := event.Subject{Session: "s", Kind: event.Open}
		copied := must.Value(l.Rewrite(waittest.Context(t), s, ack.Sequence, nil))(t)
		stored := must.Value(streamOf(t, l, "MCP_0").GetMsg(waittest.Context(t), copied.Sequence))(t)
		if stored.Header.Get("Rejoin-Later") != "7" || !bytes.Equal(stored.Data, msg.Data) {
			t.Errorf("the copy has %v, %s", stored.Header, stored.Data)
		}
		o := must.Value(other.Opening(waittest.Context(t), "s"))(t)
		o.Members, o.Changes = []string{"bob"}, 1
		changed := must.Value(other.ChangeOpening(waittest.Context(t), o))(t)
		stored = must.Value(streamOf(t, l, "MCP_0").GetMsg(waittest.Context(t), changed.Sequence))(t)
		want := `{"changes":1,"created":"2026-01-02T03:04:05Z","life":"l","members":["bob"],"owner":"me","readers":["eve"]}`
		if string(stored.Data) != want {
			t.Errorf("the changed opening has %s, want %s", stored.Data, want)
		}
	})
}

// An end that is written again names the sequence of the first one, unless that is damaged.
func TestRewrite_End(t *testing.T) {
	_, l := single(t)
	s := event.Subject{Session: "s", Life: "l", Kind: event.End}
	must.NoError(t, l.EndSession(waittest.Context(t), s.Session, s.Life))
	first := must.Value(l.NewestSequence(waittest.Context(t), s))(t)
	at := first
	for range 2 {
		again := must.Value(l.Rewrite(waittest.Context(t), s, at, nil))(t)
		if e, err := l.At(waittest.Context(t), 0, again.Sequence); err != nil || e.Began != first || e.Sequence == first {
			t.Errorf("%+v, %v", e, err)
		}
		at = again.Sequence
	}
	must.NoError(t, l.Delete(waittest.Context(t), 0, at))
	again := must.Value(l.Rewrite(waittest.Context(t), s, at, nil))(t)
	if e, err := l.At(waittest.Context(t), 0, again.Sequence); err != nil || e.Began != 0 {
		t.Errorf("%+v, %v", e, err)
	}
}
