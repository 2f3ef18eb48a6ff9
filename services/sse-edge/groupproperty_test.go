package edge

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"rejoin/services/sse-edge/delivery"
	"rejoin/services/sse-edge/edgetest"
	"rejoin/shared/auth"
	"rejoin/shared/eventlog"
	"rejoin/shared/eventlog/eventlogtest"
	"rejoin/shared/flagtype"
	"rejoin/shared/waittest"
)

// published is an event of the log.
type published struct {
	session  string
	life     int // how often the name was used before
	sequence uint64
}

// groupClient follows sessions over many connections.
type groupClient struct {
	asks     []string // names and patterns
	names    []string // that these stand for
	began    chan struct{}
	got      map[string]int // by session and sequence: how often
	gaps     map[string][]delivery.GapData
	last     string
	finished map[string]bool
}

// follows makes a client of some of the names.
func follows(names []string, asks ...string) *groupClient {
	c := &groupClient{asks: asks, began: make(chan struct{}), got: map[string]int{}, gaps: map[string][]delivery.GapData{}, finished: map[string]bool{}}
	for _, name := range names {
		if slices.ContainsFunc(asks, func(ask string) bool { return auth.Pattern(ask).Match(name) }) {
			c.names = append(c.names, name)
		}
	}
	return c
}

// told reports whether the client received a gap for an event, of a name that has had so many lives since.
func (g *groupClient) told(t *testing.T, e published, lives int) bool {
	for _, ask := range append(g.asks, e.session) {
		if ask != e.session && !auth.Pattern(ask).Match(e.session) {
			continue
		}
		if slices.ContainsFunc(g.gaps[ask], func(g delivery.GapData) bool {
			return e.life < lives || ask == e.session && edgetest.SequenceOf(t, g.ResumesAt) >= e.sequence
		}) {
			return true
		}
	}
	return false
}

// Clients of up to 500 sessions, named or by pattern, whose connections are cut, receive every event
// once, or a gap of its session, while sessions begin, end and are trimmed, their openings are written
// again, and names are used again.
func TestGroup_Property(t *testing.T) {
	t.Parallel()
	const sessions, early, steps = 500, 400, 2500
	f := &fixture{Log: edgetest.NewLogOf(t, 8), t: t}
	names := make([]string, sessions)
	for i := range names {
		names[i] = fmt.Sprint("s", i)
	}
	for _, name := range names[:early] {
		f.Create(name, "")
	}
	var edges []string
	for _, window := range []flagtype.Bytes{8 << 20, 1 << 20} { // the smaller one has to read the log
		s, _ := f.startService(func(c *Config) { c.WindowBytes, c.MaxConnectionSessions = window, sessions })
		s.knows(t, names[:early]...) // a session that begins behind a client's cursor may get a gap for another one's
		edges = append(edges, s.url())
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's
	drawn := func() string { return fmt.Sprint("s", 1+random.IntN(49), "*") }
	clients := []*groupClient{
		follows(names, names...), follows(names, names[:3]...), follows(names, "*"),
		follows(names, drawn(), drawn(), names[random.IntN(sessions)]),
		follows(names, append(slices.Clone(names[:20]), drawn())...),
	}
	var work sync.WaitGroup
	for i, c := range clients {
		t.Logf("client %d follows %d sessions: %v", i, len(c.names), c.asks[:min(len(c.asks), 4)])
		cuts := rand.New(rand.NewPCG(seed, uint64(i+1))) //nolint:gosec // a test's
		work.Go(func() { c.run(t, edges, cuts) })
	}
	for _, c := range clients { // without a cursor, a pattern leaves out what has ended
		waittest.Receive(t, "the client has a cursor", c.began)
	}

	all := map[string][]published{}
	lives, trimmed, over := map[string]int{}, map[string]bool{}, map[string]bool{}
	publish := func(name string, last bool) {
		ack, err := f.Backend.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: f.Life(name), Stream: fmt.Sprint("stream", random.IntN(2)), Data: fmt.Appendf(nil, `{"last":%t}`, last)})
		if err != nil {
			t.Fatal(err)
		}
		all[name] = append(all[name], published{name, lives[name], ack.Sequence})
	}
	end := func(name string) {
		publish(name, true)
		f.End(name)
		over[name] = true
	}
	created := early
	begin := func() {
		name := names[created]
		created++
		f.Create(name, "")
		trimmed[name] = true // see above
		if publish(name, false); random.IntN(2) == 0 {
			end(name)
		}
	}
	for range steps {
		name := names[random.IntN(1+random.IntN(created))] // the first ones are busier
		switch n := random.IntN(100); {
		case over[name]:
		case n < 2 && slices.Index(names, name) < early:
			f.Reuse(name, "")
			lives[name]++
			trimmed[name] = true
		case n < 6 && len(all[name]) > 1:
			f.trimOldest(name, all[name][:1+random.IntN(len(all[name])-1)], lives[name])
			trimmed[name] = true
		case n < 8:
			end(name)
		case n < 12 && created < sessions:
			begin()
		case n < 15:
			f.ReplaceOpening(name)
		default:
			publish(name, false)
		}
	}
	for created < sessions {
		begin()
	}
	for _, name := range names {
		if !over[name] {
			publish(name, true)
		}
	}
	work.Wait()
	for i, c := range clients {
		if c.last == "" {
			t.Fatalf("client %d received nothing", i)
		}
		for _, name := range c.names {
			for _, e := range all[name] {
				n := c.got[fmt.Sprint(name, "/", e.sequence)]
				if n > 1 || n == 0 && !c.told(t, e, lives[name]) {
					t.Errorf("client %d received %d of %s %d times, and the gaps %+v (life %d of %d, events %v)", i, e.sequence, name, n, c.gaps[name], e.life, lives[name], all[name])
				}
			}
			if len(c.gaps[name]) > 0 && !trimmed[name] {
				t.Errorf("client %d received gaps of %s, of which nothing was removed: %+v", i, name, c.gaps[name])
			}
		}
		for _, ask := range c.asks {
			if strings.HasSuffix(ask, "*") {
				t.Logf("client %d received %d gaps of %s", i, len(c.gaps[ask]), ask)
			}
		}
	}
}

// run follows the sessions until each has its last event.
func (g *groupClient) run(t *testing.T, edges []string, random *rand.Rand) {
	query := url.Values{"session": g.asks}.Encode()
	began := sync.OnceFunc(func() { close(g.began) })
	defer began()
	for len(g.finished) < len(g.names) && !t.Failed() {
		c := subscribe(t, edges[random.IntN(len(edges))]+"/v1/events?"+query, "Last-Event-ID", g.last)
		for left := 1 + random.IntN(200); left > 0 && len(g.finished) < len(g.names); left-- {
			e, err := c.Decoder.Next()
			if err != nil {
				break
			}
			if e.ID != "" {
				g.last = e.ID
				began()
			}
			switch e.Type {
			case "gap":
				var gap delivery.GapData
				if err := json.Unmarshal(e.Data, &gap); err != nil {
					t.Error(err)
				}
				g.gaps[gap.Session] = append(g.gaps[gap.Session], gap)
			case "message":
				var m groupEvent
				if err := json.Unmarshal(e.Data, &m); err != nil {
					t.Error(err)
				}
				g.got[fmt.Sprint(m.Session, "/", edgetest.SequenceOf(t, m.ID))]++
				if strings.Contains(string(m.Message), "true") {
					g.finished[m.Session] = true
				}
			}
		}
		c.Close()
	}
}

// trimOldest announces that the oldest events of a life are deleted, and deletes them.
func (f *fixture) trimOldest(name string, oldest []published, life int) {
	f.t.Helper()
	var sequences []uint64
	for _, e := range oldest {
		if e.life == life {
			sequences = append(sequences, e.sequence)
		}
	}
	if len(sequences) == 0 {
		return
	}
	log := f.Backend.Log
	_, err := eventlogtest.Announce(waittest.Context(f.t), log, eventlog.Trim{
		Session: name, Life: f.Life(name), UpTo: sequences[len(sequences)-1], Reason: eventlog.Trimmed, Removed: sequences,
	})
	for _, sequence := range sequences {
		if err == nil {
			err = log.Delete(waittest.Context(f.t), log.Partition(name), sequence)
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
}
