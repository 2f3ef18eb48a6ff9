package marks_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/nats-io/nats.go"

	"rejoin/shared/leaktest"
	"rejoin/shared/marks"
	"rejoin/shared/natstest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

// Between two pages the ledger may begin to doubt. A stream that the second page
// leaves out, since it has that page's default, must not get the first one's.
func TestADoubtThatBeginsBetweenTwoPagesHoldsForStreamsThatNoneNames(t *testing.T) {
	nc := natstest.Start(t).Connect()
	pages := map[string]marks.Reply{
		"":    {Through: 10, Marks: []marks.StreamMark{{Session: "s", Stream: "a", Mark: marks.Mark{Removed: 1}}}, Next: "s.a"},
		"s.a": {Through: 20, Default: marks.Mark{Maybe: 15}, Marks: []marks.StreamMark{{Session: "s", Stream: "c", Mark: marks.Mark{Removed: 2, Maybe: 15}}}},
	}
	if _, err := nc.Subscribe(marks.Subject, func(m *nats.Msg) {
		var req marks.Request
		_ = json.Unmarshal(m.Data, &req)
		data, _ := json.Marshal(pages[req.From])
		_ = m.Respond(data)
	}); err != nil {
		t.Fatal(err)
	}
	reply, err := marks.Ask(t.Context(), nc, marks.Request{})
	if err != nil || len(reply.Marks) != 2 || reply.Through != 10 || reply.Next != "" {
		t.Fatalf("%+v, %v", reply, err)
	}
	if reply.Default.Maybe != 15 {
		t.Errorf("the default is %+v: stream b would be taken to have lost nothing", reply.Default)
	}
}
