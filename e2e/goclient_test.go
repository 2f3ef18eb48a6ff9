package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	rejoin "rejoin/shared/client"
	"rejoin/shared/waittest"
)

// What a publisher was told to be stored is there once, and what it published comes in
// its order, whatever happens to ingest, the log and the edge meanwhile: all of them end
// with the program here.
func TestGoClient_ProgramIsKilled(t *testing.T) {
	t.Parallel()
	const streams, kills = 3, 3
	p := startProc(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*waittest.Timeout)
	defer cancel()
	tr := newTraffic(t, rejoin.PublisherConfig{URL: p.api(), MaxBatchMessages: 50, MaxBufferedMessages: 300, MaxRetry: 200 * time.Millisecond})
	for i := range streams {
		tr.write(ctx, "client", fmt.Sprint(i))
		tr.read(ctx, p.api(), "client", fmt.Sprint(i))
	}
	for range kills {
		tr.more(ctx, 1500)
		p.kill()
		p.start()
	}
	tr.more(ctx, 1500)
	tr.end(ctx, p.api())
	tr.compare()
}
