package client_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"rejoin/shared/client"
	"rejoin/shared/must"
)

// readPlan is one random life of a stream and its subscriber.
type readPlan struct {
	Flow        bool
	Steps       []readStep
	Leave       []int // after how many events a loop is left, again and again
	Restart     []bool
	Connections []connFault
	Faults      []edgeFault
}

// readStep is a change of the log after a pause.
type readStep struct {
	Pause   time.Duration
	Streams []int  // of events to publish
	Trim    uint64 // sequence up to which events are removed
}

func drawReadPlan(t *rapid.T) readPlan {
	return readPlan{
		Flow: rapid.Bool().Draw(t, "flow"),
		Steps: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) readStep {
			return readStep{
				Pause:   rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Minute}).Draw(t, "pause"),
				Streams: rapid.SliceOfN(rapid.IntRange(0, 1), 1, 6).Draw(t, "streams"),
				Trim:    rapid.SampledFrom([]uint64{0, 0, 0, 5, 10, 20}).Draw(t, "trim"),
			}
		}), 1, 8).Draw(t, "steps"),
		Leave:       rapid.SliceOfN(rapid.IntRange(1, 10), 0, 5).Draw(t, "leave"),
		Restart:     rapid.SliceOfN(rapid.Bool(), 5, 5).Draw(t, "restart"),
		Connections: rapid.SliceOfN(rapid.Custom(drawConnFault), 0, 8).Draw(t, "connections"),
		Faults:      rapid.SliceOfN(rapid.Custom(drawEdgeFault), 0, 8).Draw(t, "faults"),
	}
}

func drawEdgeFault(t *rapid.T) edgeFault {
	after := rapid.IntRange(1, 5).Draw(t, "after")
	switch rapid.IntRange(0, 6).Draw(t, "fault") {
	case 0:
		return edgeFault{Status: rapid.SampledFrom([]int{429, 500, 502, 503, 504}).Draw(t, "status"), RetryAfter: after}
	case 1:
		return edgeFault{Later: after}
	case 2:
		return edgeFault{Forgets: true, EndAfter: after}
	case 3:
		return edgeFault{EndAfter: after}
	case 4:
		return edgeFault{StallAfter: after}
	case 5:
		return edgeFault{Mute: true}
	default:
		return edgeFault{}
	}
}

// TestSubscriber_EveryEventOnceInOrderOrAGap reads under random faults, leaves
// its loops, and begins new lives with saved cursors.
func TestSubscriber_EveryEventOnceInOrderOrAGap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := drawReadPlan(rt)
		var failures []string
		synctest.Test(t, func(t *testing.T) { failures = plan.run(t) })
		if len(failures) > 0 {
			rt.Fatal(strings.Join(failures, "\n"))
		}
	})
}

// run returns the failures.
func (plan readPlan) run(t *testing.T) (failures []string) {
	wrong := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	edge := &fakeEdge{faults: plan.Faults}
	_, http := serve(t, edge, plan.Connections...)
	go plan.write(edge)
	cfg := client.SubscriberConfig{URL: "http://edge", HTTPClient: http, Session: "demo", Stream: "stream0"}
	if plan.Flow {
		cfg.Stream = ""
	}
	s, err := client.NewSubscriber(cfg)
	must.NoError(t, err)
	last, afterGap := 0, false
	take := func(e client.Event) {
		if e.Kind == client.KindGap {
			afterGap = true
			return
		}
		n := numberOf(string(e.Message))
		if n <= last {
			wrong("%d came after %d", n, last)
		}
		if missed := plan.between(last, n); missed > 0 && !afterGap && last > 0 {
			wrong("%d came after %d, and no gap was told", n, last)
		}
		last, afterGap = n, false
	}
	for life := 0; ; life++ {
		left := -1
		if life < len(plan.Leave) {
			left = plan.Leave[life]
		}
		done := true
		for e, err := range s.Events(context.Background()) {
			if err != nil {
				wrong("the loop ended with %v", err)
				return failures
			}
			take(e)
			if left--; left == 0 {
				done = false
				break
			}
		}
		if done {
			break
		}
		if plan.Restart[life] {
			cfg.After = s.Cursor()
			if s, err = client.NewSubscriber(cfg); err != nil {
				wrong("a cursor was not taken: %v", err)
				return failures
			}
		}
	}
	total := 0
	for _, step := range plan.Steps {
		total += len(step.Streams)
	}
	if missed := plan.between(last, total+1); missed > 0 && !afterGap && last > 0 {
		wrong("%d events behind %d did not come", missed, last)
	}
	return failures
}

// write does the steps and closes the stream. Event n has the sequence n.
func (plan readPlan) write(edge *fakeEdge) {
	n := 0
	for _, step := range plan.Steps {
		time.Sleep(step.Pause)
		var events []edgeEvent
		for _, stream := range step.Streams {
			n++
			events = append(events, edgeEvent{stream: fmt.Sprintf("stream%d", stream), message: string(count(n))})
		}
		edge.publish(events...)
		edge.trim(min(step.Trim, uint64(n))) //nolint:gosec // small
	}
	edge.close()
}

// between returns how many events of the subscription are between two sequences.
func (plan readPlan) between(after, before int) int {
	n, found := 0, 0
	for _, step := range plan.Steps {
		for _, stream := range step.Streams {
			if n++; n > after && n < before && (plan.Flow || stream == 0) {
				found++
			}
		}
	}
	return found
}
