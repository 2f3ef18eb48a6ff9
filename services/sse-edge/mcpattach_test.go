package edge

import (
	"slices"
	"testing"
	"time"

	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

// at returns the same client at another edge.
func (u *mcpUser) at(url string) *mcpUser {
	other := *u
	other.url = url
	return &other
}

// holds waits until a connection of an edge gets the messages of a stream, and others
// do not.
func (s *Service) holds(t *testing.T, session, stream string, connections int) {
	t.Helper()
	key := attachKey(place{session, stream})
	eventually(t, "the newest connection has its turn", func() bool {
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		at := s.attached.places[key]
		return at != nil && at.holder != nil && len(at.streams) == connections && at.holder == at.newest() && !at.holder.quiet.Load()
	})
}

// rests waits until no connection of an edge gets the messages.
func (s *Service) rests(t *testing.T, session, name string) {
	t.Helper()
	eventually(t, "another edge has the newest connection", func() bool {
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		at := s.attached.places[attachKey(place{session, name})]
		return at != nil && at.holder == nil && !slices.ContainsFunc(at.streams, func(st *stream) bool { return !st.quiet.Load() })
	})
}

func (f *fixture) mcpService() (*Service, string, func()) {
	f.t.Helper()
	s, stop := f.startService(func(c *Config) { c.MCPStreamMethods = []string{"tools/call"} })
	return s, "http://" + s.Addr().String(), stop
}

func TestTheNewestConnectionGetsTheMessages(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	b := f.bridge()
	s, url, stop := f.mcpService()
	defer stop()
	u := join(t, url, "2025-11-25")
	old := u.get("")
	old.primed()
	s.holds(t, u.session, rpc.Standalone, 1)
	b.say(u.session, rpc.Standalone, false, progress(1))
	old.says(progress(1))
	young := u.get("")
	young.primed()
	s.holds(t, u.session, rpc.Standalone, 2)
	b.say(u.session, rpc.Standalone, false, progress(2))
	young.says(progress(2))
	young.close()
	s.holds(t, u.session, rpc.Standalone, 1)
	b.say(u.session, rpc.Standalone, false, progress(3))
	old.says(progress(3)) // and not the second one
}

func TestTheNewestConnectionMayBeAtAnotherEdge(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	b := f.bridge()
	one, urlOne, stopOne := f.mcpService()
	defer stopOne()
	two, urlTwo, stopTwo := f.mcpService()
	defer stopTwo()
	u := join(t, urlOne, "2025-11-25")
	old := u.get("")
	old.primed()
	one.holds(t, u.session, rpc.Standalone, 1)
	b.say(u.session, rpc.Standalone, false, progress(1))
	old.says(progress(1))
	young := u.at(urlTwo).get("")
	young.primed()
	two.holds(t, u.session, rpc.Standalone, 1)
	one.rests(t, u.session, rpc.Standalone)
	b.say(u.session, rpc.Standalone, false, progress(2))
	young.says(progress(2))
	young.close()
	one.holds(t, u.session, rpc.Standalone, 1)
	b.say(u.session, rpc.Standalone, false, progress(3))
	old.says(progress(3))
}

func TestACallIsResumedAtAnotherEdge(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	b := f.bridge()
	one, urlOne, stopOne := f.mcpService()
	_, urlTwo, stopTwo := f.mcpService()
	defer stopTwo()
	u := join(t, urlOne, "2025-11-25")
	c := u.follow(u.post(toolCall))
	id := c.primed()
	stream := b.sent(rpc.Post)[0].Stream
	resumed := u.at(urlTwo).get(id)
	resumed.primed()
	one.rests(t, u.session, stream)
	b.say(u.session, stream, false, progress(1))
	id = resumed.says(progress(1))
	resumed.close() // the first connection takes over
	one.holds(t, u.session, stream, 1)
	b.say(u.session, stream, false, progress(2))
	c.says(progress(2))
	stopOne()
	b.say(u.session, stream, true, result(`"a"`))
	resumed = u.at(urlTwo).get(id)
	resumed.primed()
	resumed.says(progress(2), result(`"a"`))
	resumed.over()
}

// An edge that is killed releases nothing.
func TestAnEdgeThatHasGoneIsKnownByItsSilence(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	b := f.bridge()
	s, url, stop := f.mcpService()
	defer stop()
	u := join(t, url, "2025-11-25")
	c := u.get("")
	c.primed()
	s.holds(t, u.session, rpc.Standalone, 1)
	key := attachKey(place{u.session, rpc.Standalone})
	eventually(t, "the records are there", func() bool { return s.attached.records.kv.Load() != nil })
	s.attached.records.beat(t.Context(), "other")
	if _, _, err := s.attached.records.claim(t.Context(), key, "other"); err != nil {
		t.Fatal(err)
	}
	s.rests(t, u.session, rpc.Standalone)
	eventually(t, "the other edge was heard", func() bool {
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		return !s.attached.heard["other"].IsZero()
	})
	s.attached.tend(time.Now())
	s.rests(t, u.session, rpc.Standalone)
	eventually(t, "the connection takes over", func() bool {
		s.attached.tend(time.Now().Add(time.Minute)) // again, if the place was handed over meanwhile
		s.attached.mu.Lock()
		defer s.attached.mu.Unlock()
		return s.attached.places[key].holder != nil
	})
	b.say(u.session, rpc.Standalone, false, progress(1))
	c.says(progress(1))
}

// Without NATS there are no records, and nothing new either.
func TestConnectionsGoOnWithoutRecords(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	f.bridge()
	s, url, stop := f.mcpService()
	defer stop()
	u := join(t, url, "2025-11-25")
	f.server.Stop()
	c := u.get("")
	c.primed()
	s.holds(t, u.session, rpc.Standalone, 1)
	f.server.Start()
	eventually(t, "NATS is back", s.nc.IsConnected)
	eventually(t, "events come", func() bool {
		_, err := f.b.Log.Publish(t.Context(), eventlog.Event{Session: u.session, Stream: rpc.Standalone, Data: []byte(progress(1))})
		return err == nil
	})
	c.says(progress(1))
	again := u.get("")
	again.primed()
	s.holds(t, u.session, rpc.Standalone, 2)
}

// A connection that has gone before it had its turn leaves the stream to the older one.
func TestAClaimThatNobodyNeedsIsGivenBack(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	f.bridge()
	one, url, stopOne := f.mcpService()
	defer stopOne()
	two, _, stopTwo := f.mcpService()
	defer stopTwo()
	u := join(t, url, "2025-11-25")
	c := u.get("")
	c.primed()
	one.holds(t, u.session, rpc.Standalone, 1)
	at := place{u.session, rpc.Standalone}
	claimed := two.attached.claim(at)
	one.rests(t, u.session, rpc.Standalone)
	two.attached.begin(attachKey(at), claimed)
	one.holds(t, u.session, rpc.Standalone, 1)
}

// NATS keeps the records in its memory.
func TestRecordsThatAreLostAreWrittenAgain(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	f.bridge()
	one, url, stopOne := f.mcpService()
	defer stopOne()
	two, urlTwo, stopTwo := f.mcpService()
	defer stopTwo()
	u := join(t, url, "2025-11-25")
	old := u.get("")
	old.primed()
	one.holds(t, u.session, rpc.Standalone, 1)
	young := u.at(urlTwo).get("")
	young.primed()
	two.holds(t, u.session, rpc.Standalone, 1)
	one.rests(t, u.session, rpc.Standalone)
	f.server.Stop()
	f.server.Start()
	key := attachKey(place{u.session, rpc.Standalone})
	eventually(t, "the record is there again", func() bool {
		two.attached.tend(time.Now())
		r, _, err := one.attached.records.read(t.Context(), key)
		return err == nil && r.Edge == two.attached.edge
	})
	young.close()
	one.holds(t, u.session, rpc.Standalone, 1)
}

// The connection that a record is written for again may end before it is written.
func TestARecordThatIsWrittenTooLateIsReleased(t *testing.T) {
	f := newFixture(t, eventlog.Settings{})
	f.ledger(nothingRemoved)
	f.bridge()
	one, url, stopOne := f.mcpService()
	defer stopOne()
	two, urlTwo, stopTwo := f.mcpService()
	defer stopTwo()
	u := join(t, url, "2025-11-25")
	old := u.get("")
	old.primed()
	one.holds(t, u.session, rpc.Standalone, 1)
	young := u.at(urlTwo).get("")
	young.primed()
	two.holds(t, u.session, rpc.Standalone, 1)
	one.rests(t, u.session, rpc.Standalone)
	key := attachKey(place{u.session, rpc.Standalone})
	two.attached.forget()
	young.close()
	eventually(t, "the connection has ended", func() bool {
		two.attached.mu.Lock()
		defer two.attached.mu.Unlock()
		return two.attached.places[key] == nil
	})
	_, revision, err := two.attached.records.read(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	two.attached.renew(key, revision)
	one.holds(t, u.session, rpc.Standalone, 1)
}
