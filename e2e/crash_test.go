package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"rejoin/shared/event"
	"rejoin/shared/waittest"
)

func TestKill_StreamLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const kills, perLife = 3, 150
	p := startProc(t)
	path := streamPath("crash", "s")

	// One publisher, one message after the other, each tried under the same key
	// until it is stored.
	var stop atomic.Bool
	var last int
	var published sync.WaitGroup
	defer published.Wait()
	defer stop.Store(true)
	published.Go(func() {
		for n := 1; !stop.Load(); n++ {
			for ctx := waittest.Context(t); ; { // the program may be down
				a, err := try(http.MethodPost, p.api()+path, numbered(n), "Content-Type", "application/json", "Idempotency-Key", "n"+strconv.Itoa(n))
				if err == nil && a.status == http.StatusCreated {
					break
				}
				if err == nil && a.status < 500 || ctx.Err() != nil {
					t.Errorf("publishing %d: %v %+v", n, err, a)
					return
				}
			}
			last = n
		}
	})

	got, lastID := 0, ""
	follow := func(s *tap, upTo int) {
		for got < upTo {
			e, err := s.tryNext()
			if err != nil {
				return // the program has gone
			}
			switch e.Type {
			case "message":
				if n := numberOf(t, e.Data); n != got+1 {
					t.Fatalf("got number %d (%s) after %d", n, e.ID, got)
				}
				got++
			case "connect", "cursor":
			default:
				t.Fatalf("got %s %s after number %d", e.Type, e.Data, got)
			}
			lastID = e.ID
		}
	}
	for range kills {
		s := p.subscribe(path, lastID)
		goal := got + perLife
		killed := make(chan struct{})
		follow(s, goal)
		if got < goal {
			t.Fatalf("the stream ended at %d, want %d", got, goal)
		}
		go func() {
			defer close(killed)
			p.kill()
		}()
		follow(s, 1<<30) // until the connection breaks
		<-killed
		s.cut()
		p.start()
	}
	stop.Store(true)
	published.Wait()
	s := p.subscribe(path, lastID)
	if !s.connected() {
		t.Error("the last connection was not resumed")
	}
	s.numbers(got+1, last)
	if last < kills*perLife {
		t.Errorf("%d messages were published, want at least %d", last, kills*perLife)
	}
}

// retained asks the janitor how many events of a stream the log holds.
func (p *proc) retained(session, stream string) int {
	a := do(p.t, http.MethodGet, p.api()+"/v1/sessions/"+session, "")
	if a.status == http.StatusNotFound {
		return 0
	}
	var detail struct {
		Streams []struct {
			Stream string `json:"stream"`
			Events int    `json:"events"`
		} `json:"streams"`
	}
	if err := json.Unmarshal([]byte(a.body), &detail); err != nil || a.status != http.StatusOK {
		p.t.Fatalf("%d %s", a.status, a.body)
	}
	for _, s := range detail.Streams {
		if s.Stream == stream {
			return s.Events
		}
	}
	return 0
}

// emptied waits until nothing of a stream is retained.
func (p *proc) emptied(session, stream string) {
	p.t.Helper()
	waittest.Until(p.t, "all events have expired", func() bool { return p.retained(session, stream) == 0 })
}

// sequenceOf returns an id's sequence, 0 for no id.
func sequenceOf(t testing.TB, id string) uint64 {
	t.Helper()
	if id == "" {
		return 0
	}
	parsed, err := event.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Sequence
}

func TestResume_QuietStreamWhoseEventsExpired(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*proc){
		"after a cut":        func(*proc) {},
		"after a kill":       func(p *proc) { p.kill(); p.start() },
		"after a quiet life": func(p *proc) { p.stop(); p.start() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, "--max-age=10s", "--heartbeat=100ms", "--nats-sync-interval=100ms")
			path := streamPath("quiet", "s")
			p.publish("quiet", "s", 1, 3)
			s := p.subscribe(path, "")
			s.connected()
			s.numbers(1, 3)
			others := p.publish("quiet", "other", 1, 3) // of which this client hears nothing
			p.emptied("quiet", "s")
			p.emptied("quiet", "other")
			lastID := ""
			for sequenceOf(t, lastID) < sequenceOf(t, others) {
				lastID = s.next("cursor").ID // those from before come first
			}
			s.cut()

			end(p)

			s = p.subscribe(path, lastID)
			if !s.connected() {
				t.Error("the stream was not resumed")
			}
			p.publish("quiet", "s", 4, 5)
			s.numbers(4, 5)
		})
	}
}

func TestResume_ExpiredCursorGetsOneGap(t *testing.T) {
	t.Parallel()
	p := startProc(t, "--max-age=10s", "--nats-sync-interval=100ms", "--partitions=1", "--window-bytes=1024")
	path := streamPath("old", "s")
	p.publish("old", "s", 1, 1)
	s := p.subscribe(path, "")
	s.connected()
	old := s.numbers(1, 1)
	s.cut()
	p.publish("old", "s", 2, 6)
	p.emptied("old", "s")
	waittest.Until(t, "the log has removed them", func() bool {
		return p.metric(`rejoin_janitor_floor_removed_events_total`) >= 6
	})
	p.publish("old", "other", 1, 30) // which leaves nothing expired in the edge's window
	p.publish("old", "s", 7, 8)

	s = p.subscribe(path, old)
	s.connected()
	g := s.gap()
	if g.Reason != "expired" || !g.Certain || g.Requested != old || g.Stream == nil || *g.Stream != "s" {
		t.Errorf("the gap is %+v", g)
	}
	s.numbers(7, 8)
	p.publish("old", "s", 9, 9)
	last := s.numbers(9, 9)
	s.cut()
	s = p.subscribe(path, last)
	if !s.connected() {
		t.Error("the stream was not resumed behind the gap")
	}
	p.publish("old", "s", 10, 10)
	s.numbers(10, 10)
}

func TestResume_BusyStreamBesideAQuietOne(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"in the window":    nil,
		"below the window": {"--window-bytes=65536"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, append(flags, "--max-events-per-stream=10")...)
			p.publish("both", "quiet", 1, 2)
			p.publish("both", "busy", 1, 5)
			quiet, busy := p.subscribe(streamPath("both", "quiet"), ""), p.subscribe(streamPath("both", "busy"), "")
			quiet.connected()
			busy.connected()
			quietID, busyID := quiet.numbers(1, 2), busy.numbers(1, 5)
			quiet.cut()
			busy.cut()
			p.publish("both", "busy", 6, 120)
			p.publish("both", "quiet", 3, 3)

			quiet = p.subscribe(streamPath("both", "quiet"), quietID)
			if !quiet.connected() {
				t.Error("the quiet stream was not resumed")
			}
			quiet.numbers(3, 3)

			busy = p.subscribe(streamPath("both", "busy"), busyID)
			busy.connected()
			// The window may still hold any of what the log has evicted.
			for last, told := 5, false; last < 120; {
				e, err := busy.tryNext()
				if err != nil {
					t.Fatal(err)
				}
				switch e.Type {
				case "cursor":
				case "message":
					n := numberOf(t, e.Data)
					if !told && n != last+1 || told && (n <= last+1 || n > 111) {
						t.Fatalf("the busy stream went on at %d behind %d, told of a gap: %t", n, last, told)
					}
					last, told = n, false
				default:
					var g procGap
					if err := json.Unmarshal(e.Data, &g); err != nil || e.Type != "gap" || g.Reason != "trimmed" || !g.Certain {
						t.Fatalf("the busy stream got %s %s", e.Type, e.Data)
					}
					told = true
				}
			}
		})
	}
}

// begun waits until the janitor has begun the generation of another life of the log, for which others
// wait for 3 s only. earlier is an event ID of the stream, of the generation that the log had before.
func (p *proc) begun(path, earlier string) {
	p.t.Helper()
	before, err := event.ParseID(earlier)
	if err != nil {
		p.t.Fatal(err)
	}
	waittest.Until(p.t, "the generation is begun", func() bool {
		var page struct{ Cursor string }
		a, err := try(http.MethodGet, p.api()+path+"?from=now", "", "Accept", "application/json")
		if err != nil || json.Unmarshal([]byte(a.body), &page) != nil {
			return false
		}
		now, err := event.ParseID(page.Cursor)
		return err == nil && now.Tag != before.Tag
	})
}

func TestResume_LogRolledBackToACopy(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]int{"shorter than before": 3, "longer than before": 12} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t)
			path := streamPath("back", "s")
			third := ""
			for n := 1; n <= 5; n++ {
				if id := p.publish("back", "s", n, n); n == 3 {
					third = id
				}
			}
			p.stop()
			backup := p.data + ".backup"
			if err := os.CopyFS(backup, os.DirFS(p.data)); err != nil {
				t.Fatal(err)
			}
			p.start()
			p.publish("back", "s", 6, 10)
			s := p.subscribe(path, "")
			s.connected()
			ahead := s.numbers(1, 10)
			p.stop()
			if err := os.RemoveAll(p.data); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(backup, p.data); err != nil {
				t.Fatal(err)
			}
			p.start()
			p.begun(path, third)
			p.publish("back", "s", 101, 100+again)

			// A client from before, further than the copy: what it has is not in this log.
			s = p.subscribe(path, ahead)
			s.connected()
			if g := s.gap(); g.Reason != "rolled_back" || !g.Certain || g.Requested != ahead {
				t.Errorf("the gap is %+v", g)
			}
			first := numberOf(t, s.next("message").Data)
			if first > 101 {
				t.Errorf("after the gap the stream continues at %d: events between are lost", first)
			}
			if first < 101 { // events that the client has already may come again, in order
				s.numbers(first+1, 5)
				first = 100
			}
			s.numbers(max(first+1, 101), 100+again)

			// A client from before the copy was made: everything it has is here.
			s = p.subscribe(path, third)
			if !s.connected() {
				t.Error("an id from before the copy was not resumed")
			}
			s.numbers(4, 5)
			s.numbers(101, 100+again)
		})
	}
}

// An id of another session of the same name, of another stream, or from a log that
// was wiped points nowhere: a gap follows, and everything retained.
func TestResume_ForeignEventID(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	p.publish("foreign", "a", 1, 3)
	id := p.publish("foreign", "b", 1, 3)
	parsed, err := event.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	forged := parsed
	forged.Stream = "a"
	for _, after := range []string{id, forged.String(), "nonsense", strings.Repeat("x", 1000), "a__1", "*_0000000_1"} {
		s := p.subscribe(streamPath("foreign", "a"), after)
		if s.connected() {
			t.Errorf("%q was resumed", after)
		}
		if g := s.gap(); g.Reason != "unknown" || !g.Certain {
			t.Errorf("%q: the gap is %+v", after, g)
		}
		s.numbers(1, 3)
		s.cut()
	}
}

// The publisher's id and the subscribers' are the same, from the first event of a
// session on, and can be resumed from.
func TestPublish_AnswersTheIDThatSubscribersSee(t *testing.T) {
	t.Parallel()
	p := startProc(t)
	for i := range 200 {
		session := fmt.Sprintf("fresh-%d", i)
		id := p.publish(session, "s", 1, 1)
		s := p.subscribe(streamPath(session, "s"), "")
		s.connected()
		if got := s.next("message").ID; got != id {
			t.Errorf("%s was published, %s came out", id, got)
		}
		s.cut()
		s = p.subscribe(streamPath(session, "s"), id)
		if !s.connected() {
			t.Errorf("%s cannot be resumed from: %s", id, s.next("gap").Data)
		}
		s.cut()
	}
}
