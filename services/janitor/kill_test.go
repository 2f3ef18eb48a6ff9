package janitor

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
	"rejoin/shared/session"
)

// A janitor that has everything to do dies between any two of the changes that others
// can see: trim marks, deletes, what it tells of them, markers, and records. The next
// one, which stood by or is started then, does the rest, and nothing else, and no mark
// says less than the truth.
func TestAJanitorThatIsKilledAtAnyChangeLeavesNothingWrong(t *testing.T) {
	total := 0
	for n := 0; n < 3 && total < 20; n++ { // one that is held up may lose its lease before it has done all
		total = max(total, killedAfter(t, 1000, false))
	}
	if total < 20 {
		t.Fatalf("there are %d changes in all", total)
	}
	for n := range total {
		for _, anew := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d changes, next started anew %t", n, anew), func(t *testing.T) {
				t.Parallel()
				killedAfter(t, n, anew)
			})
		}
	}
}

// killedAfter has a janitor make so many changes, and another one the rest. It returns
// how many there were.
func killedAfter(t *testing.T, changes int, anew bool) int {
	t.Helper()
	srv, settings := natstest.Start(t), eventlog.Settings{Partitions: 1, MaxEventsPerSession: 4}
	network := newNetwork(t, srv)
	cfg := short(idle())
	cfg.ClosedGrace, cfg.TombstoneTTL, cfg.CloseAfter = 0, 0, time.Millisecond
	first := beginAt(t, network.url, settings, cfg)
	first.onlySweeps()
	first.acts(t)
	cfg.Interval = quick().Interval
	second := begin(t, srv, settings, cfg)
	network.breakAfter(changes)

	create := func(name string) session.Record {
		rec, err := second.b.Sessions.Create(t.Context(), session.New(name, "", nil, time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	quiet := second.publish(t, "quiet", "a", 2)
	var over []uint64
	for range 3 {
		over = append(over, second.publish(t, "over", "a", 1)...)
		over = append(over, second.publish(t, "over", "b", 1)...)
	}
	create("done")
	second.publish(t, "done", "a", 2)
	for _, stream := range []string{"a", ""} {
		if err := session.Close(t.Context(), second.b.Sessions, second.b.Log, "done", stream, false, 0); err != nil {
			t.Fatal(err)
		}
	}
	dying := create("dying")
	second.publish(t, "dying", "a", 1)
	dying.State, dying.Ended = session.Closing, time.Now().Add(-time.Hour)
	if _, err := second.b.Sessions.Update(t.Context(), dying); err != nil {
		t.Fatal(err)
	}
	cleared := second.publish(t, "cleared", "a", 3)
	marker := second.mark(t, event.Clear, "cleared", "")
	after := second.publish(t, "cleared", "a", 1)

	settled := func() (err error) {
		for name, want := range map[string][]uint64{
			"quiet": quiet, "over": over[2:], "cleared": append([]uint64{marker}, after...), "done": nil, "dying": nil,
		} {
			err = errors.Join(err, wantSequences(second.stored(t, name, ""), want))
			_, registered := second.b.Sessions.Session(name)
			if registered != (len(want) > 0) {
				err = errors.Join(err, fmt.Errorf("%s is registered: %t", name, registered))
			}
		}
		return err
	}
	eventually(t, func() error {
		if network.broken() {
			return nil
		}
		first.sweeper.sweepNow(time.Second)
		if term := first.charge.Load(); term != nil {
			first.registrar.round(term.ctx)
		}
		return settled()
	})
	made := int(network.wrote.Load())
	first.kill()
	if anew {
		second.kill()
		second = begin(t, srv, settings, cfg)
	}
	second.acts(t)
	eventually(t, settled)
	second.exact(t)
	second.wantMark(t, "quiet", "a", marks.Mark{})
	for _, of := range []struct {
		place
		gone, atMost uint64
	}{
		{place{"over", "a"}, over[0], over[1]}, {place{"over", "b"}, over[1], over[1]}, {place{"cleared", "a"}, cleared[2], cleared[2]},
	} {
		eventually(t, func() error {
			mark, err := second.ask(t, of.session, of.stream)
			if got := max(mark.Removed, mark.Maybe); err == nil && (got < of.gone || got > of.atMost || mark.Removed > of.gone) {
				t.Fatalf("the mark of %v is %+v, and %d is gone", of.place, mark, of.gone)
			}
			return err
		})
	}
	second.wantCounts(t)
	return made
}
