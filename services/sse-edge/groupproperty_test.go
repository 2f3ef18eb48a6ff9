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
	names    []string
	got      map[string]int // by session and sequence: how often
	gaps     map[string][]delivery.GapData
	last     string
	finished map[string]bool
}

// Clients of up to 500 sessions, whose connections are cut, receive every event once, or a gap of its
// session, while sessions are trimmed and names are used again.
func TestGroup_Property(t *testing.T) {
	t.Parallel()
	const sessions, steps = 500, 2500
	f := &fixture{Log: edgetest.NewLogOf(t, 8), t: t}
	names := make([]string, sessions)
	for i := range names {
		names[i] = fmt.Sprint("s", i)
		f.Create(names[i], "")
	}
	var edges []string
	for _, window := range []flagtype.Bytes{8 << 20, 400 << 10} { // the smaller one has to read the log
		s, _ := f.startService(func(c *Config) { c.WindowBytes, c.MaxConnectionSessions = window, sessions })
		s.knows(t, names...) // a session that begins behind a client's cursor may get a gap for another one's
		edges = append(edges, s.url())
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's
	var clients []*groupClient
	var work sync.WaitGroup
	for i, n := range []int{sessions, 100, 20, 3} {
		c := &groupClient{names: names[:n], got: map[string]int{}, gaps: map[string][]delivery.GapData{}, finished: map[string]bool{}}
		clients = append(clients, c)
		cuts := rand.New(rand.NewPCG(seed, uint64(i+1))) //nolint:gosec // a test's
		work.Go(func() { c.run(t, edges, cuts) })
	}

	all := map[string][]published{}
	lives, trimmed := map[string]int{}, map[string]bool{}
	publish := func(name string, last bool) {
		ack, err := f.Backend.Log.Publish(t.Context(), eventlog.Event{Session: name, Life: f.Life(name), Stream: fmt.Sprint("stream", random.IntN(2)), Data: fmt.Appendf(nil, `{"last":%t}`, last)})
		if err != nil {
			t.Fatal(err)
		}
		all[name] = append(all[name], published{name, lives[name], ack.Sequence})
	}
	for range steps {
		name := names[random.IntN(1+random.IntN(sessions))] // the first ones are busier
		switch n := random.IntN(100); {
		case n < 2:
			f.reuseIn(name)
			lives[name]++
			trimmed[name] = true
		case n < 6 && len(all[name]) > 1:
			f.trimOldest(name, all[name][:1+random.IntN(len(all[name])-1)], lives[name])
			trimmed[name] = true
		default:
			publish(name, false)
		}
	}
	for _, name := range names {
		publish(name, true)
	}
	work.Wait()
	for i, c := range clients {
		if c.last == "" {
			t.Fatalf("client %d received nothing", i)
		}
		for _, name := range c.names {
			for _, e := range all[name] {
				n := c.got[fmt.Sprint(name, "/", e.sequence)]
				told := slices.ContainsFunc(c.gaps[name], func(g delivery.GapData) bool {
					return e.life < lives[name] || edgetest.SequenceOf(t, g.ResumesAt) >= e.sequence
				})
				if n > 1 || n == 0 && !told {
					t.Errorf("client %d received %d of %s %d times, and the gaps %+v (life %d of %d)", i, e.sequence, name, n, c.gaps[name], e.life, lives[name])
				}
			}
			if len(c.gaps[name]) > 0 && !trimmed[name] {
				t.Errorf("client %d received gaps of %s, of which nothing was removed: %+v", i, name, c.gaps[name])
			}
		}
	}
}

// run follows the sessions until each has its last event.
func (g *groupClient) run(t *testing.T, edges []string, random *rand.Rand) {
	query := url.Values{"session": g.names}.Encode()
	for len(g.finished) < len(g.names) && !t.Failed() {
		c := subscribe(t, edges[random.IntN(len(edges))]+"/v1/events?"+query, "Last-Event-ID", g.last)
		for left := 1 + random.IntN(200); left > 0 && len(g.finished) < len(g.names); left-- {
			e, err := c.Decoder.Next()
			if err != nil {
				break
			}
			if e.ID != "" {
				g.last = e.ID
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

// reuseIn is reuse for a session of any partition.
func (f *fixture) reuseIn(name string) {
	f.t.Helper()
	rec, err := f.Backend.Sessions.Get(waittest.Context(f.t), name)
	if err == nil {
		err = eventlogtest.Forget(waittest.Context(f.t), f.Backend.Log, name)
	}
	if err == nil {
		err = f.Backend.Sessions.Remove(waittest.Context(f.t), rec)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.Create(name, "")
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
