package mcpedge

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"rejoin/services/sse-edge/cursor"
	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/window"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestMCP_AsksBridgeAboutCall(t *testing.T) {
	f, b := bridged(t)
	var once sync.Once
	b.check = func(c rpc.Ask) rpc.Answer { // the bridge does not know the call
		once.Do(func() {
			b.say(c.Session, c.Stream, true, `{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"lost"}}`)
		})
		return rpc.Answer{Status: http.StatusAccepted}
	}
	f.tune = func(s *edge) { s.checkEvery = 20 * time.Millisecond }
	u := join(t, f.mcpEdge(nil), "2025-11-25")
	c := u.follow(u.post(toolCall))
	c.primed()
	c.fails(`"a"`)
	if asked := b.sent(rpc.Check)[0]; asked.Stream != b.sent(rpc.Post)[0].Stream {
		t.Errorf("asked for %s", asked.Stream)
	}
}

func TestMCP_NoBridgeForLong(t *testing.T) {
	b, s, u := newMCPEdge(t, func(s *edge) { s.checkEvery, s.unheardFor = 10*time.Millisecond, 500*time.Millisecond }, nil)
	c := u.follow(u.post(toolCall))
	id := c.primed()
	other := u.get("")
	other.primed()
	b.leave()
	c.fails(`"a"`)
	if n := testutil.ToFloat64(s.metrics.abandoned); n != 1 {
		t.Errorf("%v calls were given up", n)
	}
	b.listen(rpc.Subject(u.session)) // the bridge is back, and the client asks once more, where a slow check is no failure
	b.f.tune = nil
	u = u.at(b.f.mcpEdge(nil))
	b.say(u.session, b.sent(rpc.Post)[0].Stream, true, result(`"a"`))
	u.resumes(id, result(`"a"`))
}

// While an edge waits for a response that is answered as JSON, it does not ask about the call, so it waits no
// longer than until the first question is due.
func TestMCP_AsksAboutCallThatWaitsForJSON(t *testing.T) {
	b, _, u := newMCPEdge(t, func(s *edge) { s.checkEvery = 20 * time.Millisecond }, func(c *config) { c.Heartbeat = time.Hour })
	list := make(chan *client, 1)
	go func() { list <- u.follow(u.post(toolList)) }()
	waittest.Until(t, "the bridge is asked about the call", func() bool { return len(b.sent(rpc.Check)) > 0 })
	waittest.Receive(t, "the client receives a stream", list).primed()
}

// The first question about a call is due checkEvery after the bridge has taken it, however long the edge
// waited for the response before the stream began.
func TestBegun_KeepsFirstCheck(t *testing.T) {
	due := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := cursor.InMemory(window.New(1<<10, func(string) {}), placeOf("s", "a"), 0)
	r.Came = cursor.FromNow
	m := &streamForm{service: &Service{checkEvery: checkEvery}, stateless: true, call: []json.RawMessage{json.RawMessage("7")}, checkAt: due}
	m.Connection = &delivery.Connection{Reader: r}
	if m.Begun(); !m.checkAt.Equal(due) {
		t.Errorf("it is due at %s", m.checkAt)
	}
}

// A paused bridge answers no question. The questions to it leave room for the calls of other bridges: a call
// that no edge asks about for 35 s is cancelled.
func TestCheck_ABridgeIsPaused(t *testing.T) {
	f := newFixture(t)
	f.tune = func(s *edge) { s.checkEvery = 5 * time.Millisecond }
	b := f.bridge()
	var began atomic.Bool // all calls have
	paused := make(chan struct{})
	resume := sync.OnceFunc(func() { close(paused) })
	b.check = func(rpc.Ask) rpc.Answer {
		if began.Load() {
			<-paused
		}
		return rpc.Answer{}
	}
	s, _ := f.mcpService(nil)
	t.Cleanup(resume)
	u := join(t, s.url(), "2025-11-25")
	for i := range 10 { // a question waits for 5 s at most: of one call there may be fewer on a slow machine
		u.follow(u.post(strings.Replace(toolCall, `"a"`, strconv.Itoa(i), 1))).primed()
	}
	began.Store(true)
	waittest.Until(t, "hundreds of questions wait for an answer", func() bool { return len(s.checks) > 200 })
}

// Clients give up a call after a minute; an edge sends them an error before.
func TestMCP_NoBridgeWithinHalfAMinute(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := &streamForm{service: &Service{checkEvery: checkEvery, unheardFor: unheardFor, checks: make(chan struct{})}} // nothing may be asked
	gone := now
	m.checkAt = gone.Add(checkEvery) // the bridge answered the last check, and stopped after it
	at := m.checkAt
	for ; !m.unheard.note(at, unheardFor); at = m.checkAt {
		m.Tick(at)
	}
	if last := at.Sub(gone); last > 30*time.Second {
		t.Errorf("the call is given up after %s", last)
	}
}

// The messages that a bridge stored before it stopped are sent before the call is given up, however late the window
// receives them.
func TestMCP_NoBridgeAndTheWindowIsBehind(t *testing.T) {
	b, s, u := newMCPEdge(t, func(s *edge) { s.unheardFor = 0 }, nil)
	c := u.follow(u.post(toolCall))
	c.primed()
	stream := b.sent(rpc.Post)[0].Stream
	s.attached.mu.Lock()
	form, _ := s.attached.streams[attachKey(placeOf(u.session, stream))].holder.Format.(*streamForm)
	s.attached.mu.Unlock()
	release := b.f.HoldTails()
	b.say(u.session, stream, true, result(`"a"`))
	b.leave()
	ticked, judge := make(chan struct{}), make(chan struct{})
	form.Do(func() {
		form.Tick(time.Now())
		close(ticked)
		<-judge
	})
	<-ticked
	release()
	s.attached.work.Wait()
	close(judge)
	c.ends(result(`"a"`))
}

// The time-out of a bridge begins with the question to it, however long there was none before.
func TestStateless_BridgeComesLate(t *testing.T) {
	f := newFixture(t)
	b, asked := f.bridge(), sync.Map{}
	const timeout = 100 * time.Millisecond
	b.request = func(c rpc.Ask) rpc.Answer {
		if first, _ := asked.LoadOrStore(c.Session, time.Now()); time.Since(first.(time.Time)) < 3*timeout { //nolint:errcheck // it is one
			return rpc.Answer{Status: http.StatusServiceUnavailable, NotTaken: true}
		}
		return rpc.Answer{Status: http.StatusOK, Data: []byte(result("7"))}
	}
	f.tune = func(s *edge) { s.requestTimeout, s.bridgeWait = timeout, waittest.Timeout }
	u := statelessUser(t, f.mcpEdge(nil))
	waittest.Until(t, "a request is answered", func() bool { return u.read(u.post(statelessTool)).StatusCode == http.StatusOK })
}

// A bridge that dies before it has taken a request without a session leaves no trace: the client receives
// its error in time all the same.
func TestStateless_BridgeDoesNotAnswer(t *testing.T) {
	if requestTimeout > 30*time.Second {
		t.Errorf("the client waits for %s", requestTimeout)
	}
	f := newFixture(t)
	b, asked, over := f.bridge(), make(chan rpc.Ask, 1), make(chan struct{})
	b.request = func(c rpc.Ask) rpc.Answer {
		asked <- c
		<-over
		return rpc.Answer{Status: http.StatusAccepted}
	}
	f.tune = func(s *edge) { s.requestTimeout = 50 * time.Millisecond }
	u := statelessUser(t, f.mcpEdge(nil))
	a := u.read(u.post(statelessTool))
	close(over)
	if a.StatusCode != http.StatusGatewayTimeout || !strings.Contains(a.Text, `"id":7`) || !strings.Contains(a.Text, `"code":-32603`) {
		t.Errorf("%d %s", a.StatusCode, a.Text)
	}
	<-asked
}
