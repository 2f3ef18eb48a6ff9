package eventlog_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"rejoin/shared/event"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
)

func TestScan_AllInOrder(t *testing.T) {
	_, l := single(t)
	js := newJetStream(t, l)
	publishAll(t, l, "a", 0, 600)
	must.NoError(t, l.ClearStream(waittest.Context(t), "s", "", "a"))
	must.Value(js.Publish(waittest.Context(t), "mcp.0.s.=.no=name", nil))(t)
	for _, gone := range []uint64{1, 7, 8, 400} {
		must.NoError(t, l.Delete(waittest.Context(t), 0, gone))
	}
	for _, c := range []struct {
		name                 string
		after, upTo, through uint64
		stop                 int
		first, last          uint64
		count                int
	}{
		{"all of it", 0, math.MaxUint64, math.MaxUint64, -1, 2, 602, 598},
		{"a part", 6, 500, 500, -1, 9, 500, 491},
		{"stopped", 0, math.MaxUint64, 11, 7, 2, 11, 8},
		{"nothing there", 602, 4000, 4000, -1, 0, 0, 0},
		{"no room", 10, 10, 10, -1, 0, 0, 0},
	} {
		var seen []uint64
		through, err := l.Scan(waittest.Context(t), 0, c.after, c.upTo, func(e eventlog.Entry) bool {
			seen = append(seen, e.Sequence)
			if e.Valid != (e.Sequence != 602) || e.Sequence == 601 && e.Subject.Kind != event.Clear {
				t.Errorf("%s: %d is %+v", c.name, e.Sequence, e)
			}
			return len(seen) != c.stop+1
		})
		if err != nil || through != c.through || len(seen) != c.count || !slices.IsSorted(seen) {
			t.Errorf("%s: through %d, %d entries, %v", c.name, through, len(seen), err)
		}
		if c.count > 0 && (seen[0] != c.first || seen[len(seen)-1] != c.last) {
			t.Errorf("%s: %d to %d", c.name, seen[0], seen[len(seen)-1])
		}
	}
}

// While the handler waits, the server's messages wait too, and none is lost.
func TestScan_SlowHandler(t *testing.T) {
	natstest.InVirtualTime(t, func(t *testing.T) {
		srv := natstest.StartInMemory(t, t.TempDir())
		l := create(t, srv, one(), nats.InProcessServer(srv))
		publishAll(t, l, "a", 0, 1300)
		count := 0
		_, err := l.Scan(waittest.Context(t), 0, 0, math.MaxUint64, func(e eventlog.Entry) bool {
			if count++; count == 1000 {
				time.Sleep(2 * 250 * time.Millisecond) // longer than the scan's own time limit
			}
			if e.Sequence != uint64(count) { //nolint:gosec // small
				t.Errorf("entry %d has the sequence %d", count, e.Sequence)
			}
			return true
		})
		if err != nil || count != 1300 {
			t.Errorf("%d entries, %v", count, err)
		}
	})
}

// M5: the messages in flight to a reader that does not read are bounded in bytes, so that readers of
// large events do not make the server end the connection for all.
func TestScan_BoundedInBytes(t *testing.T) {
	t.Parallel()
	const n, size = 200, 400 << 10
	srv := natstest.Start(t)
	l := create(t, srv, eventlog.Settings{Partitions: 1, MaxMessageBytes: size + 100})
	large := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n","params":[%q]}`, strings.Repeat("x", size))
	for range n {
		must.Value(l.Publish(waittest.Context(t), eventlog.Event{Session: "s", Stream: "a", Data: large}))(t)
	}
	nc := connect(t, srv)
	reader := openOn(t, nc)
	before := nc.Stats().InBytes
	blocked, release := make(chan struct{}), make(chan struct{})
	var scanning sync.WaitGroup
	scanning.Go(func() {
		count := 0
		if _, err := reader.Scan(waittest.Context(t), 0, 0, math.MaxUint64, func(eventlog.Entry) bool {
			if count++; count == 1 {
				close(blocked)
				<-release
			}
			return true
		}); err != nil || count != n {
			t.Errorf("%d entries, %v", count, err)
		}
	})
	<-blocked
	for came, still := uint64(0), 0; still < 20; still++ { // the messages that the server has sent come before its answer
		must.NoError(t, nc.Flush())
		if now := nc.Stats().InBytes - before; now != came {
			came, still = now, 0
			if came > 16<<20 {
				t.Errorf("%d bytes came of %d", came, n*size)
				break
			}
		}
	}
	close(release)
	scanning.Wait()
}
