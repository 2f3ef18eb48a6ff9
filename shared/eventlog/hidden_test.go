package eventlog_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// A message with a Status header and no data looks to nats.go like a status message of the
// server: its consumers drop it, and never receive the messages after it.
func TestTail_MessagesThatLookLikeServerHeaders(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	put := func(status, data string) {
		msg := nats.NewMsg("mcp.0.s.=.t")
		msg.Header.Set("Status", status)
		msg.Header.Set("Description", "Consumer Deleted")
		msg.Data = []byte(data)
		must.Value(js.PublishMsg(waittest.Context(t), msg))(t)
	}
	publish(t, l, "s", "t", 1)
	for _, status := range []string{"404", "409", "100", "500"} {
		put(status, "")
	}
	put("404", "{}")
	publish(t, l, "s", "t", 2)
	put("409", "")
	tails := map[string]*follower{
		"whole":        follow(t, l, 0, 0),
		"headers only": follow(t, l, 0, 0, headersOnly),
	}
	for name, f := range tails {
		f.wait(t, name, func() bool { return f.through == 8 && len(f.entries) == 8 })
	}
	put("404", "")
	publish(t, l, "s", "t", 3)
	for name, f := range tails {
		f.waitLast(t, 10)
		f.stop()
		if len(f.entries) != 10 || f.missed != 0 {
			t.Errorf("%s: %d entries, %d missed", name, len(f.entries), f.missed)
		}
		for i, e := range f.entries {
			if e.Sequence != uint64(i+1) || !e.Valid || name == "headers only" && e.Data != nil {
				t.Errorf("%s: entry %d is %+v", name, i, e)
			}
		}
	}

	scanned := scan(t, l)
	for i, e := range scanned {
		if e.Sequence != uint64(i+1) || len(scanned) != 10 {
			t.Fatalf("scanned %d of %d entries at %d", i, len(scanned), e.Sequence)
		}
	}
}
