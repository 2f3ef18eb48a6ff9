package mcpedge

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"rejoin/shared/rpc"
)

// A client that is cut off anywhere, and resumes at any edge, receives every message of its
// call once and in order, and no other; also when earlier connections are still open.
func TestMCP_CutAtAnyPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.tune = func(s *edge) {
		claimsForLong(s)
		s.attached.cursorWithin = cursorTimeout // clients send their cursors, and a stop waits for other edges
	}
	b := f.bridge()
	var urls []string
	for _, change := range []func(*config){nil, func(c *config) { c.WindowBytes = 4 << 10 }, func(c *config) { c.WindowBackfill, c.PartitionLinger = -1, 0 }} {
		urls = append(urls, f.mcpEdge(change))
	}
	calls := 0
	rapid.Check(t, func(rt *rapid.T) {
		version := rapid.SampledFrom([]string{"2025-11-25", "2025-11-25", "2025-06-18"}).Draw(rt, "version")
		u := join(t, rapid.SampledFrom(urls).Draw(rt, "edge"), version)
		messages := rapid.IntRange(0, 30).Draw(rt, "messages")
		var want []string
		for n := range messages {
			want = append(want, progress(n))
		}
		want = append(want, result(`"a"`))

		c := u.follow(u.post(toolCall))
		stream := b.sent(rpc.Post)[calls].Stream
		calls++
		first := rapid.IntRange(0, messages).Draw(rt, "published before the cuts")
		b.say(u.session, stream, false, want[:first]...)
		published := make(chan struct{})
		go func() {
			defer close(published)
			b.say(u.session, rpc.Standalone, false, progress(-1))
			b.say(u.session, stream, true, want[first:]...)
		}()
		defer func() { <-published }()

		open := []*client{c}
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		id := ""
		if version == revisionPrimed {
			id = c.primed()
		}
		for at := 0; at < len(want); {
			cut := rapid.IntRange(at, len(want)).Draw(rt, "cut")
			if id == "" && cut == 0 {
				cut = 1 // an older client that has received no ID cannot resume
			}
			if got := c.says(want[at:cut]...); got != "" {
				id = got
			}
			if at = cut; at == len(want) {
				break
			}
			if rapid.Bool().Draw(rt, "closed") {
				c.Close()
			}
			c = u.at(rapid.SampledFrom(urls).Draw(rt, "edge")).get(id)
			open = append(open, c)
			if version == revisionPrimed {
				next := c.primed()
				if next == id {
					rt.Fatal(fmt.Sprint("primed twice with ", id))
				}
				id = next
			}
		}
		c.WantEnd()
	})
}
