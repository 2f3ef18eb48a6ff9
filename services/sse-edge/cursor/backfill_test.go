package cursor

import (
	"testing"
	"time"

	"rejoin/services/sse-edge/edgetest"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/waittest"
)

func TestNewBackfill(t *testing.T) {
	const partitions, fits = 16, 12 << 20
	for name, tt := range map[string]struct {
		flag   int
		linger time.Duration
		window int
		want   backfill
	}{
		"default":                     {0, time.Minute, 16 * 15 << 20, backfill{defaultBackfill, fits}},
		"a small window":              {0, time.Minute, 16 * 1000, backfill{800, 800}},
		"all partitions are followed": {0, -1, 16 * 15 << 20, backfill{fits, fits}},
		"a number of bytes":           {16 * 3 << 20, time.Minute, 16 * 15 << 20, backfill{3 << 20, 3 << 20}},
		"more bytes than fit":         {1 << 40, time.Minute, 16 * 15 << 20, backfill{fits, fits}},
		"none":                        {-1, time.Minute, 16 * 15 << 20, backfill{}},
	} {
		if got := newBackfill(Config{WindowBytes: tt.window, Backfill: tt.flag, Linger: tt.linger}, partitions); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestBackfill_LowestCursor(t *testing.T) {
	state := eventlog.State{First: 101, Last: 1100, Events: 1000, Bytes: 100_000}
	for name, tt := range map[string]struct {
		backfill backfill
		lowest   uint64
		after    uint64
		start    uint64
	}{
		"no cursor":                          {backfill{10_000, 50_000}, noCursor, 1000, 1001},
		"before the first event of least":    {backfill{10_000, 50_000}, 1000, 1000, 1001},
		"below least":                        {backfill{10_000, 50_000}, 999, 600, 601},
		"below most":                         {backfill{10_000, 50_000}, 0, 600, 601},
		"all of the partition fits":          {backfill{10_000, 100_000}, 999, 100, 1},
		"beyond the end":                     {backfill{10_000, 100_000}, 5000, 1000, 1001},
		"none is to be read":                 {backfill{}, 0, 1100, 1101},
		"no cursor, all of it fits in least": {backfill{100_000, 100_000}, noCursor, 100, 1},
	} {
		if after, start := tt.backfill.first(state, tt.lowest); after != tt.after || start != tt.start {
			t.Errorf("%s: after %d, start %d, want %d and %d", name, after, start, tt.after, tt.start)
		}
	}
	if after, _ := (backfill{10_000, 50_000}).again(state); after != 600 {
		t.Errorf("after a roll-back it begins after %d", after)
	}
	if after, start := (backfill{10_000, 50_000}).first(eventlog.State{First: 8, Last: 7}, 3); after != 7 || start != 1 {
		t.Errorf("without events: after %d, start %d", after, start)
	}
}

// backfilled returns the partitions of a log whose windows read a tenth of what the log has, and all of it
// if a reader needs more.
func backfilled(t *testing.T, f *edgetest.Log, linger time.Duration) *Partitions {
	t.Helper()
	state, err := f.Backend.Log.Look(waittest.Context(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	ps := lingers(t, f, 0, linger)
	ps.backfill = backfill{int(state.Bytes / 10), int(state.Bytes)} //nolint:gosec // of a test
	return ps
}

// startOf is from where on the window of session s has the events.
func startOf(ps *Partitions) uint64 { return ps.Of("s").Stats().Start }

func TestPartitions_BackfillAsReadersNeed(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 100)
	ids := followLog(t, f, 0)
	r := opens(t, ids, "s", Start{})
	defer r.Close()
	reads(t, r, 1, 100)
	in := func(sequence uint64) Start { return Start{After: r.ID(sequence)} }

	for name, tt := range map[string]struct {
		from  Start
		deep  bool
		first uint64 // that the reader gets
	}{
		"a new client":                      {Start{}, false, 1},
		"a new client, from now on":         {Start{Now: true}, false, 101},
		"the newest events":                 {Start{Last: 50}, false, 51},
		"a cursor that the least covers":    {in(97), false, 98},
		"a lower cursor":                    {in(50), true, 51},
		"an ID that cannot be read":         {Start{After: "?"}, false, 0},
		"an ID of another stream, far back": {Start{After: event.ID{Stream: "b", Tag: "0000000", Sequence: 1}.String()}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ps := backfilled(t, f, time.Hour)
			r := opens(t, ps, "s", tt.from)
			defer r.Close()
			if start := startOf(ps); (start == 1) != tt.deep {
				t.Errorf("the window begins at %d", start)
			}
			if tt.first > 0 {
				reads(t, r, tt.first, 100)
			} else if s, err := r.Next(waittest.Context(t)); err != nil || len(s.Gaps) != 1 || s.First != 1 {
				t.Errorf("%v, gaps %v, first %d", err, s.Gaps, s.First)
			}
		})
	}

	t.Run("a life is asked for first", func(t *testing.T) {
		ps := backfilled(t, f, time.Hour)
		if _, _, err := ps.Life(waittest.Context(t), "s", in(50)); err != nil || startOf(ps) != 1 {
			t.Errorf("the window begins at %d; %v", startOf(ps), err)
		}
	})
	t.Run("all partitions are followed", func(t *testing.T) {
		ps := followLog(t, f, 0)
		if start := startOf(ps); start != 1 {
			t.Errorf("the window begins at %d", start)
		}
	})
}

func TestPartitions_BackfillOfAGroup(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 50)
	open := func(ps *Partitions, after string) *Group {
		t.Helper()
		g, err := ps.OpenGroup(waittest.Context(t), []Follow{{Session: "s", Stream: "a"}}, Start{After: after}, GroupConfig{
			Limit: ten, MaxMembers: 1, Frame: func(string, *Member, *window.Item) []byte { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Close)
		return g
	}
	next := func(g *Group, events int) (first uint64) {
		t.Helper()
		for events > 0 {
			s, err := g.Next(waittest.Context(t))
			if err != nil || len(s.Gaps) > 0 {
				t.Fatalf("%v, gaps %v", err, s.Gaps)
			}
			if events -= len(s.Items); first == 0 && len(s.Items) > 0 {
				first = s.Items[0].Sequence
			}
		}
		return first
	}
	g := open(followLog(t, f, 0), "")
	next(g, 50)
	middle := g.ID()
	f.Publish("a", 50)
	next(g, 50)
	end := g.ID()

	ps := backfilled(t, f, time.Hour)
	if first := next(open(ps, middle), 50); first != 51 || startOf(ps) != 1 {
		t.Errorf("its first event is %d, the window begins at %d", first, startOf(ps))
	}
	for name, after := range map[string]string{"at the end": end, "a new client": ""} {
		if ps = backfilled(t, f, time.Hour); open(ps, after) != nil && startOf(ps) < 50 {
			t.Errorf("%s: the window begins at %d", name, startOf(ps))
		}
	}
}

// waits opens a reader of session s in the background, and returns when its partition is acquired. The
// function that it returns waits for the reader.
func waits(t *testing.T, ps *Partitions, from Start) func() *Reader {
	t.Helper()
	before := readersOf(ps)
	type opened struct {
		*Reader
		err error
	}
	done := make(chan opened, 1)
	go func() {
		r, err := ps.Open(waittest.Context(t), window.Place{Session: "s", Stream: "a"}, from, ten)
		done <- opened{r, err}
	}()
	waittest.Until(t, "it waits", func() bool { return readersOf(ps) == before+1 })
	return func() *Reader {
		t.Helper()
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		t.Cleanup(r.Close)
		return r.Reader
	}
}

// readersOf returns how many readers have acquired the first partition.
func readersOf(ps *Partitions) int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.followed[0] == nil {
		return 0
	}
	return ps.followed[0].readers
}

// Clients that come back together are served by one window, also when a new client is the first.
func TestPartitions_BackfillOfSeveralReaders(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 100)
	at := opens(t, followLog(t, f, 0), "s", Start{})
	defer at.Close()
	ps := backfilled(t, f, time.Hour)
	for range cap(ps.turns) { // no window begins
		ps.turns <- struct{}{}
	}
	one, two := waits(t, ps, Start{}), waits(t, ps, Start{After: at.ID(50)})
	for range cap(ps.turns) {
		<-ps.turns
	}
	reads(t, one(), 1, 100)
	reads(t, two(), 51, 100)
	if start := startOf(ps); start != 1 {
		t.Errorf("the window begins at %d", start)
	}
}

// A window that has lost what it had has readers that may be anywhere.
func TestPartitions_BackfillAfterARollback(t *testing.T) {
	f := edgetest.NewLog(t)
	f.Publish("a", 100)
	ps := backfilled(t, f, time.Hour)
	r := opens(t, ps, "s", Start{})
	defer r.Close()
	if start := startOf(ps); start == 1 {
		t.Fatal("the window has everything")
	}
	p := ps.Of("s")
	before := *p.tailed.Load()
	before.Created = before.Created.Add(-time.Hour) // another log
	p.tailed.Store(&before)
	f.Restart()
	waittest.Until(t, "the window begins again", func() bool { return startOf(ps) == 1 && p.Stats().Events == 100 })
}
