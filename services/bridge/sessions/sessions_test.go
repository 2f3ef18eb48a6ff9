package sessions

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"rejoin/services/bridge/call"
	"rejoin/services/bridge/config"
	"rejoin/services/bridge/host"
	"rejoin/services/bridge/records"
	"rejoin/shared/backend"
	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/rpc"
	"rejoin/shared/waittest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m, natstest.IgnoreLeaks()...)) }

func newTable(t *testing.T, nc *nats.Conn) *Table {
	t.Helper()
	return NewTable(&host.Host{
		Backend: &backend.Backend{Conn: nc}, Metrics: &host.Metrics{Sessions: prometheus.NewGauge(prometheus.GaugeOpts{})}, Life: t.Context(),
	}, make(chan *nats.Msg, 1))
}

// A session may end while it is taken over: its call was at its end.
func TestTable_HoldsNoSessionThatHasEnded(t *testing.T) {
	nc := natstest.Start(t).Connect()
	table := newTable(t, nc)
	h := table.New("s", "l", "", "")
	table.release(h)
	must.NoError(t, table.Hold(h))
	if all := table.All(); len(all) > 0 {
		t.Errorf("it holds %d", len(all))
	}
	if _, err := nc.RequestWithContext(waittest.Context(t), rpc.Subject("s"), nil); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("it answers for it: %v", err)
	}
}

// A call and its question may both have the bridge answer for their session. NATS may have sent a request to the first
// subscription meanwhile, so that one stays.
func TestTable_HoldsASessionTwice(t *testing.T) {
	nc := natstest.Start(t).Connect()
	table := newTable(t, nc)
	h := table.New("s", "l", "", "")
	must.NoError(t, table.Hold(h))
	first := h.sub
	must.NoError(t, table.Hold(h))
	if n := nc.NumSubscriptions(); n != 1 || h.sub != first {
		t.Errorf("there are %d subscriptions, and the first one stays: %t", n, h.sub == first)
	}
}

// aCall is a call that is no task, and does not wait for its client.
type aCall struct{ call.Upstream }

func (aCall) Held() bool            { return false }
func (aCall) IsTask() bool          { return false }
func (aCall) RefreshTask(time.Time) {}

// A call that no edge asks about for long has no client: its edge was killed. One whose client has disconnected ends
// earlier. While edges cannot be heard neither ends: they may have asked.
func TestIsOrphaned(t *testing.T) {
	for name, limit := range map[string]time.Duration{"edge was killed": OrphanedAfter, "client has gone": 15 * time.Second} {
		t.Run(name, func(t *testing.T) {
			var meta records.Metadata
			meta.MCP.Call = &records.OneCall{}
			h := &Session{Scope: &call.Scope{Host: &host.Host{Config: config.Config{CancelGrace: 15 * time.Second}}}, Demand: TakenOver("", meta, nil), Upstream: aCall{}}
			h.leave()
			look := func() (orphaned bool) {
				if limit == OrphanedAfter {
					h.Demand.left.Store(false)
				} else {
					h.leave() // another edge notices that late
				}
				h.CountLook(true)
				return h.IsOrphaned()
			}
			for _, again := range []func(){func() { h.CountLook(false) }, func() { h.WasAsked(time.Now()) }, func() {}} {
				for i := range limit / LookEvery {
					if look() {
						t.Fatalf("it is cancelled after %d looks", i+1)
					}
				}
				again()
			}
			if !look() {
				t.Error("it is not cancelled")
			}
		})
	}
}

// Requests that repeat a call take no place of --max-calls.
func TestSession_RepeatedRequestsAreBounded(t *testing.T) {
	h := newTable(t, nil).NewForCall("s", "l", "", "", &OnDemand{})
	for n := range 2 * maxRepeated {
		if added := h.addCall(call.New(h.Scope, strconv.Itoa(n), nil)); added != (n < maxRepeated) {
			t.Errorf("request %d is added: %t", n, added)
		}
	}
}
