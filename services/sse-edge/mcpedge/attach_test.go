package mcpedge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/eventlog"
	"rejoin/shared/logrepeat"
	"rejoin/shared/must"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

// at returns the same client at another edge.
func (u *mcpUser) at(url string) *mcpUser {
	other := *u
	other.url = url
	return &other
}

// standalone is the stream of the client's GETs.
func (u *mcpUser) standalone() window.Place { return placeOf(u.session, rpc.Standalone) }

// attach opens the standalone stream at an edge, and waits until it has its turn as the
// newest of so many connections there.
func (u *mcpUser) attach(s *edge, connections int) *client {
	u.t.Helper()
	c := u.at(s.url()).get("")
	c.primed()
	s.holds(u.t, u.standalone(), connections)
	return c
}

// holds waits until the newest connection of an edge receives the messages of a stream,
// and others do not.
func (s *edge) holds(t *testing.T, stream window.Place, connections int) {
	t.Helper()
	waittest.Until(t, "the newest connection has its turn", func() bool {
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		at := s.attached.streams[attachKey(stream)]
		return at != nil && at.holder != nil && len(at.connections) == connections && at.holder == at.newest() && !at.holder.IsQuiet()
	})
}

// awaitSilence waits until no connection of an edge receives the messages.
func (s *edge) awaitSilence(t *testing.T, name window.Place) {
	t.Helper()
	waittest.Until(t, "another edge has the newest connection", func() bool {
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		at := s.attached.streams[attachKey(name)]
		return at != nil && at.holder == nil && !slices.ContainsFunc(at.connections, func(conn *connection) bool { return !conn.IsQuiet() })
	})
}

// left waits until an edge has no connection of a stream any more.
func (s *edge) left(t *testing.T, name window.Place) {
	t.Helper()
	waittest.Until(t, "its connections have ended", func() bool {
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		return s.attached.streams[attachKey(name)] == nil
	})
}

// shownCursor waits until an edge was shown the cursor of the connection before its own, and returns the
// record's revision.
func (s *edge) shownCursor(t *testing.T, key string) (revision uint64) {
	t.Helper()
	waittest.Until(t, "the edge was shown the cursor of the other one", func() bool {
		r, now, err := s.attached.records.read(t.Context(), key)
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		revision = now
		return err == nil && r.From != "" && s.attached.streams[key].revision == revision
	})
	return revision
}

// hears gives a sign of life of another edge, and waits until an edge has received that, and all records
// before it.
func (s *edge) hears(t *testing.T, other string) {
	t.Helper()
	waittest.Until(t, "the other edge was heard", func() bool {
		s.attached.records.beat(t.Context(), other)
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		return !s.attached.heard[other].IsZero()
	})
}

// claimedElsewhere has another edge, which gives only one sign of life, claim a stream of an edge.
func claimedElsewhere(t *testing.T, s *edge, stream window.Place) {
	t.Helper()
	s.hears(t, "other")
	if _, _, err := s.attached.records.claim(waittest.Context(t), attachKey(stream), "other"); err != nil {
		t.Fatal(err)
	}
	s.awaitSilence(t, stream)
	s.attached.work.Wait() // the cursor is sent
}

// claimsForLong lets requests to NATS and to other edges take as long as they do on a slow
// machine: a claim that is given up leaves the messages to a connection at another edge, and
// a record or cursor that is not released or sent stays at its edge.
func claimsForLong(s *edge) {
	a := s.attached
	a.claimWithin, a.records.within, a.cursorWithin = 20*time.Second, 20*time.Second, 20*time.Second
}

// meet waits until edges have heard each other: no cursor is sent before.
func meet(t *testing.T, edges ...*edge) {
	t.Helper()
	for _, s := range edges {
		waittest.Until(t, "the edge has heard the others", func() bool {
			for _, other := range edges {
				s.attached.mu.Lock()
				heard := !s.attached.heard[other.attached.edge].IsZero()
				s.attached.mu.Unlock()
				if !heard {
					other.attached.records.beat(t.Context(), other.attached.edge)
					return false
				}
			}
			return true
		})
	}
}

// newMCPs is newMCP with so many edges; the session is begun at the first.
func newMCPs(t *testing.T, n int) (b *bridge, u *mcpUser, edges []*edge) {
	t.Helper()
	f := newFixture(t)
	f.tune = func(s *edge) {
		claimsForLong(s)
		s.attached.beatEvery = time.Hour // or an edge tends the records of the test
	}
	b = f.bridge()
	for range n {
		s, _ := f.mcpService(nil)
		edges = append(edges, s)
	}
	meet(t, edges...)
	return b, join(t, edges[0].url(), "2025-11-25"), edges
}

// newMovedMCP is newMCPs with two edges; the client connected to one first, and has its
// newest connection at two.
func newMovedMCP(t *testing.T) (u *mcpUser, one, two *edge, newest *client) {
	t.Helper()
	_, u, edges := newMCPs(t, 2)
	one, two = edges[0], edges[1]
	u.attach(one, 1)
	newest = u.attach(two, 1)
	one.awaitSilence(t, u.standalone())
	return u, one, two, newest
}

func TestAttach_NewestConnection(t *testing.T) {
	b, u, edges := newMCPs(t, 1)
	s := edges[0]
	old := u.attach(s, 1)
	b.say(u.session, rpc.Standalone, false, progress(1))
	old.says(progress(1))
	young := u.attach(s, 2)
	b.say(u.session, rpc.Standalone, false, progress(2))
	young.says(progress(2))
	young.Close()
	s.holds(t, u.standalone(), 1)
	b.say(u.session, rpc.Standalone, false, progress(3))
	old.says(progress(3)) // and not the second one
}

// A client without an ID does not receive the events again that another edge has sent it, and that this one's window
// has yet to receive.
func TestAttach_WindowIsBehind(t *testing.T) {
	b, u, edges := newMCPs(t, 1)
	looks := must.Value(b.f.Backend.Conn.SubscribeSync("$JS.API.STREAM.INFO.MCP_0"))(t)
	release := b.f.HoldTails()
	b.say(u.session, rpc.Standalone, false, progress(1))
	go func() {
		if _, err := looks.NextMsgWithContext(waittest.Context(t)); err != nil {
			t.Error(err)
		}
		release()
	}()
	c := u.attach(edges[0], 1)
	b.say(u.session, rpc.Standalone, false, progress(2))
	c.says(progress(2))
}

// The wait for the cursor of a connection at the same edge has no time-out: that connection has yet to send
// the events that are being read for it.
func TestAttach_SlowConnectionAtTheSameEdge(t *testing.T) {
	_, u, edges := newMCPs(t, 1)
	s := edges[0]
	u.attach(s, 1)
	s.attached.cursorWithin = 0
	s.attached.mu.Lock()
	holder := s.attached.streams[attachKey(u.standalone())].holder
	s.attached.mu.Unlock()
	busy := make(chan struct{})
	holder.Do(func() { <-busy })
	silenced := make(chan string, 1)
	where := s.attached.silence(holder)
	go func() { silenced <- where() }()
	select {
	case where := <-silenced:
		close(busy)
		t.Fatalf("it stands at %q, and its worker was not asked", where)
	case <-time.After(50 * time.Millisecond):
	}
	close(busy)
	if where := waittest.Receive(t, "the connection is quiet", silenced); where == "" {
		t.Error("nobody knows where the connection stands")
	}
}

func TestAttach_AnotherEdge(t *testing.T) {
	b, u, edges := newMCPs(t, 2)
	one, two := edges[0], edges[1]
	old := u.attach(one, 1)
	b.say(u.session, rpc.Standalone, false, progress(1))
	old.says(progress(1))
	young := u.attach(two, 1)
	one.awaitSilence(t, u.standalone())
	b.say(u.session, rpc.Standalone, false, progress(2))
	young.says(progress(2))
	young.Close()
	one.holds(t, u.standalone(), 1)
	b.say(u.session, rpc.Standalone, false, progress(3))
	old.says(progress(3))
}

func TestAttach_ResumeAtAnotherEdge(t *testing.T) {
	f := newFixture(t)
	f.tune = claimsForLong
	b := f.bridge()
	one, stop := f.mcpService(nil)
	two, _ := f.mcpService(nil)
	meet(t, one, two)
	u := join(t, one.url(), "2025-11-25")
	c := u.follow(u.post(toolCall))
	id := c.primed()
	stream := b.sent(rpc.Post)[0].Stream
	resumed := u.at(two.url()).get(id)
	resumed.primed()
	one.awaitSilence(t, placeOf(u.session, stream))
	b.say(u.session, stream, false, progress(1))
	id = resumed.says(progress(1))
	resumed.Close() // the first connection takes over
	one.holds(t, placeOf(u.session, stream), 1)
	b.say(u.session, stream, false, progress(2))
	c.says(progress(2))
	stop()
	b.say(u.session, stream, true, result(`"a"`))
	u.at(two.url()).resumes(id, progress(2), result(`"a"`))
}

// A client that makes up the names of calls creates no records.
func TestAttach_UnknownCall(t *testing.T) {
	_, u, edges := newMCPs(t, 1)
	a := edges[0].attached
	c := u.get("abcdefabcdef-7_0000000_1")
	c.primed()
	c.fails("7")
	if _, _, err := a.records.read(waittest.Context(t), attachKey(placeOf(u.session, "abcdefabcdef-7"))); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("its record was read with %v", err)
	}
}

// An edge that is killed releases no record.
func TestAttach_EdgeIsGone(t *testing.T) {
	b, u, edges := newMCPs(t, 1)
	s := edges[0]
	c := u.attach(s, 1)
	key := attachKey(u.standalone())
	claimedElsewhere(t, s, u.standalone())
	s.attached.tend(time.Now())
	s.attached.work.Wait()
	s.awaitSilence(t, u.standalone())
	waittest.Until(t, "the connection takes over", func() bool {
		s.attached.tend(time.Now().Add(time.Minute)) // again, if the cursor was sent meanwhile
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		return s.attached.streams[key].holder != nil
	})
	b.say(u.session, rpc.Standalone, false, progress(1))
	c.says(progress(1))
}

// An edge that was paused, or had no NATS, has not heard the others meanwhile: it takes no stream from an
// edge that has the newest connection.
func TestAttach_AfterAPause(t *testing.T) {
	for name, tt := range map[string]struct {
		beats     int // that the edge did not make
		connected bool
	}{"paused": {3, true}, "without NATS": {1, false}} {
		u, one, two, _ := newMovedMCP(t)
		a, now := one.attached, time.Now()
		a.mu.Lock()
		for edge := range a.heard {
			a.heard[edge] = now.Add(-time.Minute)
		}
		a.mu.Unlock()
		a.tick(now, now.Add(-time.Duration(tt.beats)*a.beatEvery), tt.connected)
		a.work.Wait()
		if r, _, err := a.records.read(waittest.Context(t), attachKey(u.standalone())); err != nil || r.Edge != two.attached.edge {
			t.Errorf("%s: the record is %+v, %v", name, r, err)
		}
	}
}

// Without NATS there are no records, and no new events either.
func TestAttach_NoRecords(t *testing.T) {
	t.Parallel()
	b, u, edges := newMCPs(t, 1)
	s := edges[0]
	waittest.Until(t, "the edge's copy has the session", func() bool {
		_, ok := s.sessions.Session(u.session)
		return ok
	})
	b.f.Server.Stop()
	c := u.attach(s, 1)
	b.f.Server.Start()
	waittest.Until(t, "NATS is back", s.nc.IsConnected)
	waittest.Until(t, "events come", func() bool {
		_, err := b.f.Backend.Log.Publish(t.Context(), eventlog.Event{Session: u.session, Life: b.f.Life(u.session), Stream: rpc.Standalone, Data: []byte(progress(1))})
		return err == nil
	})
	c.says(progress(1))
	u.attach(s, 2)
}

// A connection that ends does not release the record that the next one at its edge has claimed:
// an older one elsewhere would receive the messages, and the newest one none.
func TestAttach_OutlivesPrevious(t *testing.T) {
	u, one, two, before := newMovedMCP(t)
	key := attachKey(u.standalone())
	claimed := two.attached.claim(key) // its connection has not joined yet
	before.Close()
	two.left(t, u.standalone())
	two.attached.release(key, "")
	r, _, err := one.attached.records.read(waittest.Context(t), key)
	if err != nil || r.Edge != two.attached.edge || r.Released {
		t.Errorf("the record is %+v, %v", r, err)
	}
	two.attached.miss(key, claimed)
	one.holds(t, u.standalone(), 1)
}

// A stream may be claimed by another edge before the connection of an earlier claim has joined: that one is
// not the newest.
func TestAttach_ClaimedBeforeItJoins(t *testing.T) {
	_, u, edges := newMCPs(t, 2)
	one, two := edges[0].attached, edges[1].attached
	at := u.standalone()
	key := attachKey(at)
	for _, a := range []*attachments{one, two} {
		waittest.Until(t, "the records are there", func() bool { return a.records.kv.Load() != nil })
	}
	claimed := one.claim(key)
	later := two.claim(key)
	defer two.miss(key, later)
	waittest.Until(t, "the edge sees the later claim", func() bool {
		one.mu.Lock()
		defer one.mu.Unlock()
		return one.latest[key].revision >= later.revision
	})
	r := cursor.InMemory(window.New(1<<10, func(string) {}), at, 0)
	conn := &connection{Connection: delivery.NewSSE(&delivery.Connections{}, r, delivery.Request{}, false), claim: claimed}
	conn.WaitTurn(true)
	one.join(conn)
	defer one.leave(conn, "")
	one.work.Wait()
	one.mu.Lock()
	defer one.mu.Unlock()
	if now := one.streams[key]; now.holder != nil || now.record.Edge != two.edge {
		t.Errorf("the older connection has the turn (%t), and the newest is at %q", now.holder != nil, now.record.Edge)
	}
	if len(one.coming)+len(one.latest) != 0 {
		t.Errorf("%d claims and %d records are kept", len(one.coming), len(one.latest))
	}
}

// An edge that takes over a record may find that it was claimed meanwhile.
func TestAttach_LateTakeOver(t *testing.T) {
	u, old, young, _ := newMovedMCP(t)
	one, two := old.attached, young.attached
	key := attachKey(u.standalone())
	revision := young.shownCursor(t, key) // the record does not change any more
	var kv jetstream.KeyValue = &updating{KeyValue: *one.records.kv.Load(), then: func() {
		_, claimed, err := two.records.claim(t.Context(), key, two.edge)
		if err != nil {
			t.Error(err)
		}
		waittest.Until(t, "the edge was shown the claim", func() bool {
			one.mu.Lock()
			defer one.mu.Unlock()
			return one.streams[key].revision >= claimed
		})
	}}
	one.records.kv.Store(&kv)
	one.takeOver(key, revision, "")
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.streams[key].holder != nil || one.streams[key].record.Edge != two.edge {
		t.Error("a connection gets the messages that another edge has claimed")
	}
}

// NATS may lose the records with its disk.
func TestAttach_LostRecords(t *testing.T) {
	t.Parallel()
	u, one, two, young := newMovedMCP(t)
	must.NoError(t, one.attached.records.js.DeleteKeyValue(waittest.Context(t), rpc.AttachBucket))
	key := attachKey(u.standalone())
	waittest.Until(t, "the record is there again", func() bool {
		two.attached.tend(time.Now())
		r, _, err := one.attached.records.read(t.Context(), key)
		return err == nil && r.Edge == two.attached.edge
	})
	young.Close()
	one.holds(t, u.standalone(), 1)
}

// The connection that a record is written for again may end before it is written.
func TestAttach_LateRecord(t *testing.T) {
	u, one, two, young := newMovedMCP(t)
	key := attachKey(u.standalone())
	two.shownCursor(t, key) // no earlier record is shown after it
	two.attached.dropRevisions()
	young.Close()
	two.left(t, u.standalone())
	_, revision, err := two.attached.records.read(waittest.Context(t), key)
	must.NoError(t, err)
	two.attached.renew(key, revision)
	one.holds(t, u.standalone(), 1)
}

// NATS may be down when a record is to be released.
func TestAttach_ReleaseFails(t *testing.T) {
	t.Parallel()
	u, one, two, young := newMovedMCP(t)
	kv := two.attached.records.kv.Swap(nil)
	young.Close()
	two.left(t, u.standalone())
	waittest.Until(t, "the record is to be released again", func() bool {
		two.attached.mu.Lock()
		defer two.attached.mu.Unlock()
		return len(two.attached.unreleased) == 1
	})
	two.attached.records.kv.Store(kv)
	two.attached.tend(time.Now())
	one.holds(t, u.standalone(), 1)
}

// unanswered is a bucket whose first update by an edge for itself receives no answer, whether it is written or not.
type unanswered struct {
	jetstream.KeyValue
	edge    string
	written bool
	updates atomic.Int32
}

func (u *unanswered) Update(ctx context.Context, key string, value []byte, last uint64) (uint64, error) {
	if !bytes.Contains(value, []byte(u.edge)) || u.updates.Add(1) > 1 { // the cursor for another edge may come late
		return u.KeyValue.Update(ctx, key, value, last)
	}
	if u.written {
		if _, err := u.KeyValue.Update(ctx, key, value, last); err != nil {
			return 0, err
		}
	}
	return 0, context.DeadlineExceeded
}

// A record that is taken over may be written, or not, and no answer comes.
func TestAttach_TakeOverUnanswered(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written=%t", written), func(t *testing.T) {
			t.Parallel()
			u, one, two, young := newMovedMCP(t)
			takes := &unanswered{KeyValue: *one.attached.records.kv.Load(), edge: one.attached.edge, written: written}
			var kv jetstream.KeyValue = takes
			one.attached.records.kv.Store(&kv)
			young.Close()
			key := attachKey(u.standalone())
			two.left(t, u.standalone())
			var r attachRecord
			var revision uint64
			waittest.Until(t, "the record was released, and is taken over without an answer", func() (ok bool) {
				var err error
				tried := takes.updates.Load() > 0 // before the read, or that could be older
				r, revision, err = two.attached.records.read(t.Context(), key)
				return err == nil && tried && r.Released != written
			})
			one.attached.dropRevisions() // as after a cut
			one.attached.show(key, r, revision)
			waittest.Until(t, "the connection takes over", func() bool {
				one.attached.tend(time.Now())
				one.attached.mu.Lock()
				defer one.attached.mu.Unlock()
				return one.attached.streams[key].holder != nil
			})
			one.holds(t, u.standalone(), 1)
		})
	}
}

// The answer to a renewal may come neither before the connection ends nor after.
func TestAttach_RenewalUnanswered(t *testing.T) {
	t.Parallel()
	u, one, two, young := newMovedMCP(t)
	key := attachKey(u.standalone())
	young.Close()
	one.holds(t, u.standalone(), 1)
	_, revision, err := two.attached.records.read(waittest.Context(t), key)
	must.NoError(t, err)
	var kv jetstream.KeyValue = &unanswered{KeyValue: *two.attached.records.kv.Load(), edge: two.attached.edge, written: true}
	two.attached.records.kv.Store(&kv)
	two.attached.renew(key, revision)
	waittest.Until(t, "the record is released and taken over", func() bool {
		r, now, err := one.attached.records.read(t.Context(), key)
		return err == nil && r.Edge == one.attached.edge && now > revision
	})
	one.holds(t, u.standalone(), 1)
}

// updating is a bucket that calls then after its first update is written, before the answer.
type updating struct {
	jetstream.KeyValue
	then    func()
	updates atomic.Int32
}

func (u *updating) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	revision, err = u.KeyValue.Update(ctx, key, value, last)
	if err == nil && u.updates.Add(1) == 1 {
		u.then()
	}
	return revision, err
}

// A record that is taken over from another edge may be claimed for a new connection at this edge before that has
// joined.
func TestAttach_ClaimedWhileLeft(t *testing.T) {
	_, u, edges := newMCPs(t, 1)
	s := edges[0]
	u.attach(s, 1)
	claimedElsewhere(t, s, u.standalone())
	var kv jetstream.KeyValue = &updating{KeyValue: *s.attached.records.kv.Load(), then: func() {
		s.attached.tend(time.Now().Add(time.Minute))
		s.attached.work.Wait()
	}}
	s.attached.records.kv.Store(&kv)
	s.attached.cursorWithin = 0 // the other edge sends none
	u.attach(s, 2)
}

// NATS may be down when a connection claims its stream.
func TestAttach_ClaimFails(t *testing.T) {
	t.Parallel()
	_, u, edges := newMCPs(t, 2)
	one, two := edges[0], edges[1]
	u.attach(one, 1)
	two.hears(t, "other") // after the claim at the first edge
	kv := two.attached.records.kv.Swap(nil)
	u.attach(two, 1)
	two.attached.records.kv.Store(kv)
	two.attached.tend(time.Now())
	one.awaitSilence(t, u.standalone())
	two.holds(t, u.standalone(), 1)
}

// The number of clients does not decide how much is logged while NATS is down.
func TestAttach_FailingClaimsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := newAttachments(t.Context(), &attachRecords{trouble: logrepeat.New(slog.New(slog.NewTextHandler(&out, nil)))})
	for range 3 {
		a.claim("s")
	}
	if got := strings.Count(out.String(), "\n"); got != 1 {
		t.Errorf("%d lines: %s", got, &out)
	}
}

// A claim may be written, and no answer comes.
func TestAttach_ClaimUnanswered(t *testing.T) {
	t.Parallel()
	_, u, edges := newMCPs(t, 2)
	one, two := edges[0], edges[1]
	u.attach(one, 1)
	var kv jetstream.KeyValue = &unanswered{KeyValue: *two.attached.records.kv.Load(), edge: two.attached.edge, written: true}
	two.attached.records.kv.Store(&kv)
	u.attach(two, 1)
	one.awaitSilence(t, u.standalone())
	key := attachKey(u.standalone())
	written := two.shownCursor(t, key)
	two.attached.tend(time.Now().Add(attachRenewal + time.Minute))
	waittest.Until(t, "the record is renewed", func() bool {
		r, revision, err := one.attached.records.read(t.Context(), key)
		return err == nil && r.Edge == two.attached.edge && revision > written
	})
	two.attached.work.Wait()
}

// A connection may get its turn again right after it was silenced.
func TestAttach_TurnAfterSilence(t *testing.T) {
	_, u, edges := newMCPs(t, 1)
	s, a := edges[0], edges[0].attached
	u.attach(s, 1)
	key := attachKey(u.standalone())
	a.mu.Lock()
	at := a.streams[key]
	conn, revision := at.holder, at.revision
	a.mu.Unlock()
	a.show(key, attachRecord{Edge: "other"}, revision+10)
	a.mu.Lock()
	a.turn(at, conn, "")
	a.mu.Unlock()
	a.work.Wait()
	s.holds(t, u.standalone(), 1)
}

// An edge may be shown a release, and not the claim before it.
func TestAttach_ReleaseWithoutClaim(t *testing.T) {
	t.Parallel()
	_, u, edges := newMCPs(t, 1)
	s, a := edges[0], edges[0].attached
	u.attach(s, 1)
	key := attachKey(u.standalone())
	_, revision, err := a.records.read(waittest.Context(t), key)
	must.NoError(t, err)
	must.Value(a.records.update(waittest.Context(t), key, attachRecord{Edge: "other", Released: true}, revision))(t)
	waittest.Until(t, "the record is the edge's again", func() bool {
		r, _, err := a.records.read(t.Context(), key)
		return err == nil && r.Edge == a.edge && !r.Released
	})
	s.holds(t, u.standalone(), 1)
}
