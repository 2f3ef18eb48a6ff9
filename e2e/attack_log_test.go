package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

// The attacks V3 to V10 on the promises of the log, as the table in the design of the log
// lists them, each with real processes and from outside:
//
//   - a publish is answered with 201 only for an event that every subscriber with a cursor
//     before it receives, or gets a gap for;
//   - after a 204 to a DELETE no publish is stored;
//   - an event is never sent under an ID of another session;
//   - events that the disk loses cause gaps, never silence.

// A registry that is older than the log, torn, or lost does not reopen a stream or
// session that the log has closed (V3).
func TestAttack_RegistryOlderThanLog(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, folder, older string){
		"older copy": putBack,
		"torn":       func(t *testing.T, folder, _ string) { truncateNewest(t, folder, 50) },
		"emptied":    func(t *testing.T, folder, _ string) { truncateNewest(t, folder, 0) },
		"lost": func(t *testing.T, folder, _ string) {
			must.NoError(t, os.RemoveAll(folder))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t)
			whole, stream := streamPath("whole", "s"), streamPath("part", "s")
			cursors := map[string]string{whole: p.publish("whole", "s", 1, 3), stream: p.publish("part", "s", 1, 3)}
			p.publish("part", "other", 1, 1) // the session stays
			p.stop()
			folder, older := streamFolder(t, p.data, "KV_MCP_SESSIONS"), filepath.Join(t.TempDir(), "older")
			must.NoError(t, os.CopyFS(older, os.DirFS(folder)))
			p.start()
			p.close("/v1/sessions/whole")
			p.close("/v1/sessions/part/streams/s")
			p.stop()
			damage(t, folder, older)
			p.start()

			for path, cursor := range cursors {
				a, _ := inTime(t, "a publish is answered", func() answer {
					return do(t, http.MethodPost, p.api()+path, numbered(4), "Content-Type", "application/json")
				})
				if a.status == http.StatusCreated {
					t.Errorf("%s was closed with 204, and a publish is answered 201", path)
					if got := p.page(path, cursor); len(got.ids) == 0 && len(got.gaps) == 0 {
						t.Errorf("%s: a subscriber receives neither that event nor a gap: closed is %t", path, got.closed)
					}
				}
			}
		})
	}
}

// A trim is lost, though not the deletes that followed it, or a power cut takes both: the
// subscriber receives the events, or a gap (V4).
func TestAttack_TrimLost(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(t *testing.T, p *proc)
		want   *procGap // nil: any, or the events
	}{
		"alone": {func(t *testing.T, p *proc) {
			// A slow machine has one trim for some of the events, and another for the others.
			for _, trim := range p.trims() {
				must.NoError(t, p.partition0().SecureDeleteMsg(t.Context(), trim))
			}
			p.stop()
		}, &procGap{Reason: "damaged"}},
		"with the deletes": {func(t *testing.T, p *proc) {
			p.stop()
			truncateNewest(t, streamFolder(t, p.data, "MCP_0"), 60)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProc(t, "--partitions=1", "--max-events-per-session=5", "--interval=100ms", "--nats-sync-interval=50ms")
			p.publish("first", "s", 1, 1) // the trimmed events lie after the first retained sequence
			path := streamPath("trimmed", "quiet")
			last := p.publish("trimmed", "quiet", 1, 3)
			s := p.subscribe(path, "")
			s.connected()
			cursor := s.numbers(1, 1)
			s.cut()
			p.publish("trimmed", "busy", 1, 5)
			waittest.Until(t, "the oldest events have gone", func() bool { return p.retained("trimmed", "quiet") == 0 })
			waittest.Until(t, "the events are deleted", func() bool { return !p.stored(sequenceOf(t, last)) })
			tt.damage(t, p)
			p.start()

			s = p.subscribe(path, cursor)
			p.publish("trimmed", "quiet", 101, 101)
			got := s.read(101)
			if want := map[int]string{2: "", 3: "", 101: ""}; len(got.missing(want)) > 0 && len(got.gaps) == 0 {
				t.Errorf("the subscriber does not receive %v, and no gap", got.missing(want))
			}
			if tt.want != nil && (len(got.gaps) != 1 || got.gaps[0].Reason != tt.want.Reason || got.gaps[0].Certain != tt.want.Certain) {
				t.Errorf("the subscriber gets the gaps %+v, want one like %+v", got.gaps, *tt.want)
			}
		})
	}
}

// partition0 is the only partition of a log, as its NATS server has it.
func (p *proc) partition0() jetstream.Stream {
	p.t.Helper()
	js := natstest.JetStream(p.t, p.nats(p.t), jetstream.WithDefaultTimeout(waittest.Timeout))
	return must.Value(js.Stream(p.t.Context(), "MCP_0"))(p.t)
}

// stored reports whether a log of one partition has an entry of a sequence.
func (p *proc) stored(sequence uint64) bool {
	p.t.Helper()
	_, err := p.partition0().GetMsg(p.t.Context(), sequence)
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		p.t.Fatal(err)
	}
	return err == nil
}

// trims returns the sequences of all trims of the partition.
func (p *proc) trims() (all []uint64) {
	p.t.Helper()
	stream := p.partition0()
	for seq := stream.CachedInfo().State.LastSeq; seq > 0; seq-- {
		msg, err := stream.GetMsg(p.t.Context(), seq)
		if err == nil && strings.Contains(msg.Subject, ".=trim") {
			all = append(all, seq)
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			p.t.Fatal(err)
		}
	}
	if len(all) == 0 {
		p.t.Fatal("the log has no trim")
	}
	return all
}

// A damaged block in the middle of a partition costs a gap (V5).
func TestAttack_MiddleBlockDamaged(t *testing.T) {
	const most, size = 600, 60_000
	for name, tt := range map[string]struct {
		percent int64 // that is left
		flag    string
	}{
		"emptied": {0, "--compression"},
		"torn":    {50, "--no-compression"},
		// nats-server 2.15.2 gives up the whole partition ("s2: corrupt input").
		"torn, compressed": {50, "--compression"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Blocks have 4 MB in a partition of this size, and 8 MB at most.
			p := startProc(t, "--partitions=1", "--max-bytes=25165824", "--max-bytes-per-session=-1", tt.flag)
			path := streamPath("damaged", "s")
			folder := streamFolder(t, p.data, "MCP_0")
			all := map[int]string{}
			for n := 1; n <= most && len(blocksOf(t, folder)) < 3; n++ {
				pad := make([]byte, size/2)
				_, _ = rand.Read(pad) // never fails; it cannot be compressed much
				all[n] = p.store(path, strings.Replace(numbered(n), "}}", fmt.Sprintf(`,"pad":"%x"}}`, pad), 1))
			}
			p.stop()
			removeIndex(t, folder)
			truncate(t, blocksOf(t, folder)[1], tt.percent)
			p.start()

			s := p.subscribe(path, all[1])
			p.store(path, numbered(most+1))
			got := s.read(most + 1)
			delete(all, 1)
			missing := got.missing(all)
			t.Logf("of %d events %d are missing; gaps: %+v", len(all), len(missing), got.gaps)
			if len(missing) > 0 && len(got.gaps) == 0 {
				t.Errorf("the subscriber does not receive %d events, the first of them %d, and no gap", len(missing), missing[0])
			}
		})
	}
}

// installation is NATS, a janitor and an ingest, in processes of their own.
type installation struct {
	nats   *natsProc
	ingest string // URL
}

// install starts an installation, with more flags for its janitor. Tests start the edges that they want.
func install(t *testing.T, janitor ...string) installation {
	t.Helper()
	n := newNATS(t, "")
	n.start()
	startService(t, "janitor", append(janitor, n.flag(), "--partitions=1", "--interval=50ms")...)
	return installation{n, startService(t, "ingest", n.flag()).url}
}

// attackedStream is a stream s with three events and a subscriber that has received them.
func (in installation) attackedStream(t *testing.T) (path string, s *tap) {
	t.Helper()
	path = streamPath("attacked", "s")
	publishAt(t, in.ingest, path, 1001, 1003)
	s = procAt(t, startService(t, "sse-edge", in.nats.flag()).url).subscribe(path, "")
	s.connected()
	s.numbers(1001, 1003)
	return path, s
}

// untilClose is higher than any number of a message.
const untilClose = 1 << 30

// checkReceived makes sure that the subscriber of a stream that was closed has received
// the stored events, or a gap.
func checkReceived(t *testing.T, got transcript, stored map[int]string) {
	t.Helper()
	if missing := got.missing(stored); len(missing) > 0 && len(got.gaps) == 0 {
		t.Errorf("%d of %d publishes answered 201 are events that no subscriber receives, and there is no gap", len(missing), len(stored))
	}
}

// An ingest that is paused while another one closes the stream answers 201 only for
// events that subscribers receive (V6).
func TestAttack_IngestPausedWhileStreamCloses(t *testing.T) {
	// When it continues it has to read publishes before the news of the close. Go takes 128
	// connections from the kernel at a time, in the order in which they had something to read.
	const size = 2 * 128
	for name, what := range map[string]string{"stream": "/streams/s", "session": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t)
			paused := startService(t, "ingest", in.nats.flag())
			path, s := in.attackedStream(t)
			publishAt(t, paused.url, path, 1004, 1004) // it knows the stream
			s.numbers(1004, 1004)
			v := aim(t, size, paused.url)
			paused.pause(t)
			v.fire(path)
			closeAt(t, in.ingest+"/v1/sessions/attacked"+what)
			paused.resume(t)
			stored := v.stored()
			checkReceived(t, s.read(untilClose), stored)
		})
	}
}

// An ingest whose link to NATS stalls while another one closes the stream stores no event
// afterwards (V6): its publishes begin when the close is answered.
func TestAttack_IngestLinkStalledWhileStreamCloses(t *testing.T) {
	const size = 60
	for name, directions := range map[string][]direction{"to the ingest": {toClient}, "both ways": {toServer, toClient}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := install(t)
			link := newSlowLink(t, in.nats.addr)
			cutOff := startService(t, "ingest", link.flag())
			path, s := in.attackedStream(t)
			publishAt(t, cutOff.url, path, 1004, 1004) // it knows the stream
			s.numbers(1004, 1004)
			v := aim(t, size, cutOff.url)
			link.stall(directions...)
			closeAt(t, in.ingest+"/v1/sessions/attacked/streams/s")
			v.fire(path)
			waittest.Until(t, "the publishes are on their way", func() bool { return link.counted(attackText) == size || v.answered() })
			link.heal()
			stored := v.stored()
			if len(stored) > 0 {
				t.Errorf("the stream was closed with 204, and %d publishes that began later are answered 201", len(stored))
			}
			checkReceived(t, s.read(untilClose), stored)
		})
	}
}

// A janitor whose clock is ahead of the closing ingest's by 30 s ends nothing before its
// time: no publish is answered 201 whose event is not received (V9). The other ingest
// cannot reach NATS from before the close until a subscriber has received the end of the
// stream. That is shorter than a publish may take, so that no margin of the close is
// exceeded: only the clocks differ.
func TestAttack_ClosingIngestsClockIsBehind(t *testing.T) {
	const size = 199
	slow := builtWithClock(t, "rejoin/services/ingest/cmd/ingest", -30*time.Second)
	in := install(t)
	closing := startProgram(t, slow, "ingest listens", "--ingest-addr=127.0.0.1:0", in.nats.flag())
	link := newSlowLink(t, in.nats.addr)
	busy := startService(t, "ingest", link.flag())
	path, s := in.attackedStream(t)
	publishAt(t, closing.url, path, 1004, 1004)
	publishAt(t, busy.url, path, 1005, 1005)
	s.numbers(1004, 1005)

	v := aim(t, size, busy.url)
	link.stall(toServer, toClient)
	begun := time.Now()
	v.fire(path)
	waittest.Until(t, "the publishes are on their way", func() bool { return link.counted(attackText) == size || v.answered() })
	var closed sync.WaitGroup
	closed.Go(func() { closeAt(t, closing.url+"/v1/sessions/attacked/streams/s") })
	got := s.read(untilClose)
	t.Logf("the publishes were under way for %s", time.Since(begun).Round(time.Millisecond))
	link.heal()
	stored := v.stored()
	closed.Wait()
	checkReceived(t, got, stored)
}

// again is sessions whose names were used for two sessions each, while an edge was behind.
type again struct {
	ingest string
	edge   *proc
	names  []string
	before map[string]*tap           // connections to all streams of the first session of a name
	cursor map[string]string         // of those connections, before the edge was behind
	ids    map[string]map[int]string // of the second session's events, by name and number
}

// behind is a way for an edge to be behind while the names are used again.
type behind struct {
	begin func(t *testing.T, edge *program, link *slowLink)
	end   func(t *testing.T, edge *program, link *slowLink)
}

var (
	stopped = behind{
		func(t *testing.T, edge *program, _ *slowLink) { edge.pause(t) },
		func(t *testing.T, edge *program, _ *slowLink) { edge.resume(t) },
	}
	cutOff = behind{
		func(_ *testing.T, _ *program, link *slowLink) { link.cut() },
		func(_ *testing.T, _ *program, link *slowLink) { link.heal() },
	}
	waysBehind = map[string]behind{
		"stopped": stopped, "stopped, registry behind": stopped.registryBehind(),
		"cut off": cutOff, "cut off, registry behind": cutOff.registryBehind(),
	}
)

// registryBehind is the same, and the registry's messages arrive later than the log's, as
// they do from another server.
func (b behind) registryBehind() behind {
	return behind{
		func(t *testing.T, edge *program, link *slowLink) {
			b.begin(t, edge, link)
			link.holdBack("$KV.MCP_SESSIONS.")
		},
		func(t *testing.T, edge *program, link *slowLink) {
			b.end(t, edge, link)
			link.releaseLate()
		},
	}
}

// useAgain has every name used for a session of the events 1 to 4, and for another one of
// the events 101 to 110. The edge is behind from the event 4 to the end.
func useAgain(t *testing.T, names int, way behind) again {
	t.Helper()
	in := install(t, "--nats-sync-interval=50ms", "--closed-grace=100ms", "--tombstone-ttl=100ms")
	n, ingest, link := in.nats, in.ingest, newSlowLink(t, in.nats.addr)
	edge := startService(t, "sse-edge", link.flag())
	w := again{ingest: ingest, edge: procAt(t, edge.url), before: map[string]*tap{}, cursor: map[string]string{}, ids: map[string]map[int]string{}}
	for i := range names {
		name := fmt.Sprintf("name-%d", i)
		w.names = append(w.names, name)
		publishAt(t, ingest, streamPath(name, "s"), 1, 3)
		w.before[name] = w.edge.subscribe("/v1/sessions/"+name+"/events", "")
		w.before[name].connected()
		w.cursor[name] = w.before[name].read(3).cursor
	}
	way.begin(t, edge, link)
	var closing sync.WaitGroup
	for _, name := range w.names {
		publishAt(t, ingest, streamPath(name, "s"), 4, 4)
		closing.Go(func() { closeAt(t, ingest+"/v1/sessions/"+name) })
	}
	closing.Wait()
	// A name is free when the log has no entry of its session.
	rejoinLog(t, "set", "--max-age=1s", "--yes", n.flag())
	for _, name := range w.names {
		waittest.Until(t, name+" is free", func() bool {
			return do(t, http.MethodPost, ingest+"/v1/sessions", `{"session":"`+name+`"}`, "Content-Type", "application/json").status == http.StatusCreated
		})
	}
	rejoinLog(t, "set", "--max-age=1h", n.flag())
	for _, name := range w.names {
		w.ids[name] = publishAt(t, ingest, streamPath(name, "s"), 101, 110)
	}
	way.end(t, edge, link)
	return w
}

// catchUp publishes events that are numbered 200 and higher until an edge shows one, and
// returns its page after a cursor.
func catchUp(t *testing.T, ingest string, edge *proc, path, cursor string) (got transcript) {
	t.Helper()
	looks := 0
	waittest.Until(t, "the edge shows an event of "+path+" that was published now", func() bool {
		if looks%20 == 0 {
			publishAt(t, ingest, path, 200+looks, 200+looks)
		}
		looks++
		got = edge.page(path, cursor)
		return slices.Max(append(slices.Collect(maps.Keys(got.ids)), 0)) >= 200
	})
	return got
}

func TestAttack_EdgeBehindWhileNameIsUsedAgain(t *testing.T) {
	for name, way := range waysBehind {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := useAgain(t, 8, way)
			connectionsEnd(t, w)
			newSessionsAreWhole(t, w)
		})
	}
}

// An edge that was behind while a session's name was used again drops no event of the new
// session (V7).
func newSessionsAreWhole(t *testing.T, w again) {
	t.Helper()
	silent, events := 0, 0
	for _, name := range w.names {
		stored := maps.Clone(w.ids[name])
		delete(stored, 101)
		got := catchUp(t, w.ingest, w.edge, streamPath(name, "s"), w.ids[name][101])
		if missing := got.missing(stored); len(missing) > 0 && len(got.gaps) == 0 {
			silent++
			events += len(missing)
		}
	}
	if silent > 0 {
		t.Errorf("in %d of %d sessions a subscriber does not receive %d events in all, and no gap", silent, len(w.names), events)
	}
}

// A connection to a session that has ended receives that session's last events, or a gap,
// and sends no event of another session of its name under an ID of the first one (V8).
func connectionsEnd(t *testing.T, w again) {
	t.Helper()
	wrong, silent, ended := 0, 0, 0
	for _, name := range w.names {
		got := w.before[name].read(101)
		if got.closed {
			ended++
		} else if len(got.ids) == 0 && len(got.gaps) == 0 { // the edge has the client resume
			resumed := w.edge.subscribe("/v1/sessions/"+name+"/events", w.cursor[name])
			got = resumed.read(101)
			resumed.cut()
		}
		if _, last := got.ids[4]; !last && len(got.gaps) == 0 {
			silent++
		}
		if got.ids[101] == "" {
			continue
		}
		now := w.edge.subscribe("/v1/sessions/"+name+"/events", "")
		if right := now.read(101).ids[101]; right != got.ids[101] {
			if wrong++; wrong == 1 {
				t.Logf("the first event of the second session has the ID %s for its own subscribers, and is sent as %s", right, got.ids[101])
			}
		}
		now.cut()
	}
	t.Logf("%d of %d connections ended with their session", ended, len(w.names))
	if wrong > 0 {
		t.Errorf("%d of %d connections continue into another session under IDs of the first", wrong, len(w.names))
	}
	if silent > 0 {
		t.Errorf("%d of %d connections lack the last event of their session, and got no gap", silent, len(w.names))
	}
}

// A NATS server that is put back to an older copy of its store under a running edge serves
// a stream that was closed in the lost life: the edge drops none of its new events (V10).
func TestAttack_RolledBackUnderRunningEdge(t *testing.T) {
	for name, prefix := range map[string]string{"all at once": "", "registry behind": "$KV.MCP_SESSIONS."} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const streams = 20
			in := install(t)
			n, ingest, link := in.nats, in.ingest, newSlowLink(t, in.nats.addr)
			edge := procAt(t, startService(t, "sse-edge", link.flag()).url)
			pathOf := func(i int) string { return streamPath(fmt.Sprintf("session-%d", i), "s") }
			cursors := map[int]string{}
			for i := range streams {
				cursors[i] = publishAt(t, ingest, pathOf(i), 1, 2)[2]
			}
			n.end(syscall.SIGINT)
			older := filepath.Join(t.TempDir(), "older")
			must.NoError(t, os.CopyFS(older, os.DirFS(n.store)))
			n.start()
			var closing sync.WaitGroup
			for i := range streams {
				closing.Go(func() { closeAt(t, ingest+strings.TrimSuffix(pathOf(i), "/events")) })
			}
			closing.Wait()
			for i := range streams {
				waittest.Until(t, "the edge has the end", func() bool { return edge.page(pathOf(i), "").closed })
			}
			n.end(syscall.SIGINT)
			putBack(t, n.store, older)
			if prefix != "" {
				link.holdBack(prefix)
			}
			n.start()
			link.releaseLate()
			stored := map[int]map[int]string{}
			for i := range streams {
				// The first sequences are assigned a second time. Until the ingest has noticed that,
				// it may refuse streams that the lost life has closed.
				waittest.Until(t, "the stream is open again", func() bool {
					return do(t, http.MethodPost, ingest+pathOf(i), numbered(100), "Content-Type", "application/json").status == http.StatusCreated
				})
				stored[i] = publishAt(t, ingest, pathOf(i), 101, 105)
				stored[i][100] = ""
			}
			silent := 0
			for i := range streams {
				got := catchUp(t, ingest, edge, pathOf(i), cursors[i])
				if missing := got.missing(stored[i]); len(missing) > 0 && len(got.gaps) == 0 {
					silent++
				}
			}
			if silent > 0 {
				t.Errorf("in %d of %d sessions a subscriber does not receive all that was stored after the roll-back, and no gap", silent, streams)
			}
		})
	}
}
