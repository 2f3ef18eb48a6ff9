package eventlog_test

import (
	"runtime"
	"testing"

	"rejoin/shared/natstest"
)

// Every question to other services has a subscription of its own, of many at a time.
func TestConnect_SubscriptionsAreSmall(t *testing.T) {
	nc := connect(t, natstest.Start(t))
	const n, most = 32, 128 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		sub, err := nc.SubscribeSync(nc.NewRespInbox())
		if err != nil {
			t.Fatal(err)
		}
		must(t, sub.Unsubscribe())
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > most {
		t.Errorf("a subscription takes %d bytes, more than %d", each, most)
	}
}
