package owners

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/bucket"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

func connect(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc := must.Value(nats.Connect(natstest.Start(t).URL()))(t)
	t.Cleanup(nc.Close)
	js := natstest.JetStream(t, nc)
	must.Value(bucket.Ensure(t.Context(), js, rpc.CallsConfig(1)))(t)
	return js
}

func wantOwns(t *testing.T, n *Notes, principal, task string, want bool) {
	t.Helper()
	if got, err := n.Owns(t.Context(), principal, task); err != nil || got != want {
		t.Errorf("%s owns %s: %t, %v", principal, task, got, err)
	}
}

// A note holds at its bridge at once, and at the others when it is stored.
func TestNotes(t *testing.T) {
	js := connect(t)
	here, there := New(js, time.Hour), New(js, time.Hour)
	write := here.Note("alice", "1", time.Minute)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if write(gone) == nil || here.Unwritten() != 1 {
		t.Error("the note is stored without NATS")
	}
	wantOwns(t, here, "alice", "1", true)
	wantOwns(t, there, "alice", "1", false)
	again := here.Note("alice", "1", time.Minute)
	for _, w := range []func(context.Context) error{write, again} {
		must.NoError(t, w(t.Context()))
		wantOwns(t, here, "alice", "1", true)
	}
	if here.Unwritten() != 0 {
		t.Errorf("%d notes are not stored", here.Unwritten())
	}
	wantOwns(t, there, "alice", "1", true)
	wantOwns(t, there, "bob", "1", false)
	wantOwns(t, there, "alice", "2", false)
	js.Conn().Close()
	if _, err := there.Owns(t.Context(), "alice", "1"); err == nil {
		t.Error("a note is found without NATS")
	}
}

// A note expires, unless it is used.
func TestNotes_TTL(t *testing.T) {
	js := connect(t)
	stream := must.Value(js.Stream(t.Context(), "KV_"+rpc.CallsBucket))(t)
	ttl := func(key string) (string, uint64) {
		msg := must.Value(stream.GetLastMsgForSubject(t.Context(), "$KV."+rpc.CallsBucket+"."+key))(t)
		return msg.Header.Get(jetstream.MsgTTLHeader), msg.Sequence
	}
	n := New(js, time.Hour)
	for task, tt := range map[string]struct {
		ttl  time.Duration
		want string
	}{"short": {time.Minute, "1h0m0s"}, "long": {2 * time.Hour, "2h0m0s"}, "longer": {1000 * time.Hour, "24h0m0s"}, "unlimited": {0, "24h0m0s"}} {
		must.NoError(t, n.Note("alice", task, tt.ttl)(t.Context()))
		key := keyOf("alice", task)
		got, before := ttl(key)
		if got != tt.want {
			t.Errorf("the note of a task that is kept for %s is kept for %s", tt.ttl, got)
		}
		wantOwns(t, n, "alice", task, true)
		if _, after := ttl(key); after != before {
			t.Error("a new note is stored again")
		}
		whole := must.Value(time.ParseDuration(tt.want))(t)
		n.now = func() time.Time { return time.Now().Add(whole/2 + time.Second) }
		wantOwns(t, n, "alice", task, true)
		n.now = time.Now
		if got, after := ttl(key); after == before || got != tt.want {
			t.Error("an old note is not stored again")
		}
	}
	brief := New(js, time.Second)
	must.NoError(t, brief.Note("alice", "brief", time.Second)(t.Context()))
	brief.now = func() time.Time { return time.Time{} } // it is not stored again
	for owns := true; owns; {
		owns = must.Value(brief.Owns(t.Context(), "alice", "brief"))(t)
	}
}
