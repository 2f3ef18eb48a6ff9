package ingest_test

import (
	"encoding/json"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// M10: one publisher's arrays on NATS held up all others at that ingest.
func TestAttackArraysOnNATS(t *testing.T) {
	t.Parallel()
	s := newSystem(t, eventlog.Settings{Partitions: 1, MaxEventsPerStream: -1, MaxEventsPerSession: -1})
	cfg := testConfig()
	cfg.MaxInFlight = 4096
	s.start(t, cfg)
	attacker, healthy := s.srv.Connect(), s.srv.Connect()
	messages, _ := pings(20_000)
	array := []byte("[" + strings.Join(messages, ",") + "]")
	const arrays = 3
	inbox := attacker.NewRespInbox()
	answers := must.Value(attacker.SubscribeSync(inbox))(t)
	for range arrays {
		must.NoError(t, attacker.PublishMsg(&nats.Msg{Subject: "mcp.ingest.greedy.t", Reply: inbox, Header: nats.Header{"Content-Type": {asMessages}}, Data: array}))
	}
	must.NoError(t, attacker.FlushWithContext(waittest.Context(t))) // from here on they are ahead of all others
	waited := arrays                                                // that were answered before the first of the others
	for i := range 20 {
		reply := request(t, healthy, "mcp.ingest.modest"+strconv.Itoa(i)+".t", ping("1"))
		if reply.Header.Get(micro.ErrorHeader) != "" {
			t.Errorf("a healthy publisher is answered %v %s", reply.Header, reply.Data)
		}
		if n, _, err := answers.Pending(); err == nil {
			waited = min(waited, n)
		}
	}
	if waited == arrays {
		t.Errorf("the others waited for all %d arrays", arrays)
	}
	for range arrays {
		msg := must.Value(answers.NextMsgWithContext(waittest.Context(t)))(t)
		var sum batchAnswer
		if err := json.Unmarshal(msg.Data, &sum); err != nil || sum.Accepted != len(messages) || sum.Stopped != nil {
			t.Errorf("an array is answered %v %.300s, %v", msg.Header, msg.Data, err)
		}
	}
}

// A client that repeats failing requests does not decide how much is logged.
func TestAttackClosesThatFail(t *testing.T) {
	t.Parallel()
	s, log := newSystem(t, eventlog.Settings{Partitions: 1}), &waittest.Buffer{}
	s.log = log
	in := s.start(t, testConfig())
	in.post(t, "s", "t", ping("1")).got(t, http.StatusCreated)
	s.srv.Stop()
	waittest.Until(t, "not ready", func() bool { return !in.ready() })
	restore := in.expire()
	for range 20 {
		in.close(t, "s").expect(t, http.StatusServiceUnavailable, "unavailable")
	}
	restore()
	about := 0
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "session=s") {
			about++
			if !strings.Contains(line, `msg="request failed"`) { // which counts those after the first
				t.Error(line)
			}
		}
	}
	if about == 0 {
		t.Error("no line says that a close failed")
	}
}

// The memory of a batch besides its messages is not counted, so it has to be little.
func TestAttackSmallArrays(t *testing.T) {
	s := newSystem(t, eventlog.Settings{Partitions: 1})
	cfg := testConfig()
	cfg.MaxInFlight = 4096
	in := s.start(t, cfg)
	in.post(t, "s", "t", ping("0")).stored(t, false)
	s.change(t, func(c *jetstream.StreamConfig) { c.NoAck = true })
	const n, most = 300, 48 << 10 // with the connection and its client
	for round := range 2 {        // the first one fills pools
		before := heap()
		var all sync.WaitGroup
		for range n {
			all.Go(func() { in.send(t, http.MethodPost, batchPath, []byte("[1]"), "Content-Type", asMessages) })
		}
		waittest.Until(t, "all wait for JetStream", func() bool { return in.metric(t, "rejoin_ingest_inflight") == n })
		if each := (heap() - before) / n; round > 0 && each > most {
			t.Errorf("an array of three bytes takes %d", each)
		}
		restore := in.expire()
		all.Wait()
		restore()
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far fewer
}
