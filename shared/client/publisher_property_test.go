package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/client"
)

// publishPlan is one random life of a publisher.
type publishPlan struct {
	Streams     []int           // of each message
	Pauses      []time.Duration // before each message
	Unwanted    []bool
	Batch       int
	Requests    int
	Connections []connFault
	Faults      []ingestFault
}

func drawPublishPlan(t *rapid.T) publishPlan {
	n := rapid.IntRange(1, 25).Draw(t, "messages")
	return publishPlan{
		Streams:     rapid.SliceOfN(rapid.IntRange(0, 2), n, n).Draw(t, "streams"),
		Pauses:      rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, time.Second}), n, n).Draw(t, "pauses"),
		Unwanted:    rapid.SliceOfN(rapid.SampledFrom([]bool{false, false, false, true}), n, n).Draw(t, "unwanted"),
		Batch:       rapid.IntRange(1, 8).Draw(t, "batch"),
		Requests:    rapid.IntRange(1, 3).Draw(t, "requests"),
		Connections: rapid.SliceOfN(rapid.Custom(drawConnFault), 0, 12).Draw(t, "connections"),
		Faults:      rapid.SliceOfN(rapid.Custom(drawIngestFault), 0, 12).Draw(t, "faults"),
	}
}

func drawConnFault(t *rapid.T) connFault {
	switch rapid.IntRange(0, 3).Draw(t, "connection") {
	case 0:
		return connFault{Refused: true}
	case 1:
		return connFault{CutRead: rapid.IntRange(1, 3000).Draw(t, "cut read")}
	case 2:
		return connFault{CutWrite: rapid.IntRange(1, 2000).Draw(t, "cut write")}
	default:
		return connFault{}
	}
}

func drawIngestFault(t *rapid.T) ingestFault {
	at := rapid.IntRange(1, 8).Draw(t, "at")
	switch rapid.IntRange(0, 9).Draw(t, "request") {
	case 0:
		return ingestFault{Status: 503, Code: "unavailable", RetryAfter: rapid.IntRange(0, 40).Draw(t, "after")}
	case 1:
		return ingestFault{Status: 502, Lost: rapid.Bool().Draw(t, "lost")}
	case 2:
		return ingestFault{Status: 429}
	case 3:
		return ingestFault{StopAt: at, StopCode: "publish_unknown", Stored: rapid.Bool().Draw(t, "stored")}
	case 4:
		return ingestFault{StopAt: at, StopCode: rapid.SampledFrom([]string{"unavailable", "storage_full"}).Draw(t, "code")}
	case 5:
		return ingestFault{StopAt: at, StopCode: "unavailable", Untried: true}
	case 6:
		// Up to five minutes for a request, which its publisher does not wait for.
		return ingestFault{Delay: rapid.SampledFrom([]time.Duration{time.Millisecond, 10 * time.Second, 40 * time.Second}).Draw(t, "delay")}
	case 7:
		return ingestFault{Garbage: rapid.SampledFrom([]string{"\n", "{}\n", `{"index":0`, `{"index":1,"id":"x"}` + "\n"}).Draw(t, "garbage")}
	case 8:
		return ingestFault{HangUp: true, Lost: rapid.Bool().Draw(t, "lost")}
	default:
		return ingestFault{}
	}
}

// TestPublisher_StoresOnceAndInOrder publishes under random faults.
func TestPublisher_StoresOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := drawPublishPlan(rt)
		var failures []string
		synctest.Test(t, func(t *testing.T) { failures = plan.run(t) })
		if len(failures) > 0 {
			rt.Fatal(strings.Join(failures, "\n"))
		}
	})
}

// run returns the failures.
func (plan publishPlan) run(t *testing.T) (failures []string) {
	wrong := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	ingest := &fakeIngest{faults: plan.Faults}
	p, _ := publisherTo(t, ingest, client.PublisherConfig{
		MaxBatchMessages: plan.Batch, MaxRequests: plan.Requests, MaxBufferedMessages: 10,
	}, plan.Connections...)
	results := make([]*client.Result, len(plan.Streams))
	for i := range results {
		time.Sleep(plan.Pauses[i])
		m := message(fmt.Sprintf("stream%d", plan.Streams[i]), i)
		if plan.Unwanted[i] {
			m.Data = fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"n":%d}}`, unwanted, i)
		}
		var err error
		if results[i], err = p.Publish(t.Context(), m); err != nil {
			wrong("message %d cannot be published: %v", i, err)
			return failures
		}
	}
	if err := p.Close(context.Background()); err != nil {
		wrong("Close: %v", err)
	}
	ids := map[int][]string{} // in the log, by message
	last := map[string]int{}  // message, by stream
	for _, l := range ingest.log() {
		n := numberOf(l.message)
		ids[n] = append(ids[n], l.id)
		if before, ok := last[l.path]; ok && before >= n {
			wrong("message %d is stored behind %d", n, before)
		}
		last[l.path] = n
	}
	for i, r := range results {
		stored, err := outcome(r)
		_, isRefusal := errors.AsType[*client.Error](err)
		switch {
		case err == nil && (len(ids[i]) != 1 || ids[i][0] != stored.ID):
			wrong("message %d is reported as %s and stored as %v", i, stored.ID, ids[i])
		case err != nil && len(ids[i]) > 1:
			wrong("message %d is stored as %v", i, ids[i])
		case err != nil && !errors.Is(err, client.ErrUnknown) && len(ids[i]) > 0:
			wrong("message %d is reported as not stored (%v) and stored as %v", i, err, ids[i])
		case err != nil && !errors.Is(err, client.ErrUnknown) && !isRefusal:
			wrong("the outcome of message %d is %v", i, err)
		case plan.Unwanted[i] && err == nil:
			wrong("message %d was not wanted, and is reported as stored", i)
		}
	}
	return failures
}

// numberOf returns the n of a message.
func numberOf(message string) int {
	var n int
	if _, err := fmt.Sscanf(message[strings.LastIndexByte(message, ':')+1:], "%d", &n); err != nil {
		panic(err)
	}
	return n
}
