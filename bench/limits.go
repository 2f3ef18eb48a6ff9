package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"rejoin/shared/event"
)

const (
	hotSession = "hot"
	// hotStreams are so many that none gets to its own limit: the session does.
	hotStreams = 50
	hotRate    = 5000 // events/s
	hotTime    = time.Minute
	hotLimit   = 10_000 // events of one session that a log keeps by default
	hotSample  = 100 * time.Millisecond
)

func hotSubject(stream string) string {
	return fmt.Sprintf("mcp.%d.%s.%s", event.Partition(hotSession, partitions), hotSession, stream)
}

// limitsCase measures for how long a session that is written to without a pause holds
// more than its limits and a twentieth. The janitor runs alone, beside JetStream alone,
// so that what it takes can be told. What the session holds is what JetStream says.
func limitsCase(ctx context.Context, p *programs) (figures, error) {
	var f figures
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	log, err := startBareLog(ctx, p)
	if err != nil {
		return f, err
	}
	defer log.end()
	j, err := startJanitor(ctx, p, log.url)
	if err != nil {
		return f, err
	}
	defer j.stop()
	stream, err := log.js.Stream(ctx, fmt.Sprint("MCP_", event.Partition(hotSession, partitions)))
	if err != nil {
		return f, err
	}
	before, err := cpu([]int{j.cmd.Process.Pid})
	if err != nil {
		return f, err
	}
	pace := startPacer(ctx, log.logPublisher, hotRate, func(n int) string { return hotSubject(strconv.Itoa(n % hotStreams)) })
	begun := time.Now()
	above, err := watchHot(ctx, stream, begun.Add(hotTime))
	took := time.Since(begun)
	acks := pace.take()
	if err := errors.Join(err, pace.stop()); err != nil {
		return f, err
	}
	after, err := cpu([]int{j.cmd.Process.Pid})
	if err != nil {
		return f, err
	}
	f.add("longest_above_s", above.longest.Seconds())
	f.add("above_of_time", above.total.Seconds()/took.Seconds())
	f.add("most_events", float64(above.most))
	f.add("events_per_s", float64(acks.total)/took.Seconds())
	f.addHistogram("ack_", acks)
	f.add("janitor_cpu", (after-before).Seconds()/took.Seconds())
	return f, nil
}

// hotTimes say how long a session held too much.
type hotTimes struct {
	longest, total time.Duration // in a row, and in all
	most           uint64        // events
	since          time.Time     // it holds too much; zero: it does not
}

// add adds a sample.
func (h *hotTimes) add(events uint64, now time.Time) {
	h.most = max(h.most, events)
	if !h.since.IsZero() {
		h.longest = max(h.longest, now.Sub(h.since))
	}
	switch tooMuch := events > hotLimit+hotLimit/20; {
	case tooMuch && h.since.IsZero():
		h.since = now
	case !tooMuch && !h.since.IsZero():
		h.total += now.Sub(h.since)
		h.since = time.Time{}
	}
}

// watchHot samples what the session holds.
func watchHot(ctx context.Context, stream jetstream.Stream, until time.Time) (h hotTimes, err error) {
	for now := time.Now(); now.Before(until); now = time.Now() {
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(hotSubject("*")))
		if err != nil {
			return h, err
		}
		held := uint64(0)
		for _, n := range info.State.Subjects {
			held += n
		}
		h.add(held, now)
		if err := pause(ctx, time.Until(now.Add(hotSample))); err != nil {
			return h, err
		}
	}
	if !h.since.IsZero() {
		h.total += until.Sub(h.since)
	}
	return h, nil
}

// startJanitor starts a janitor of its own, and waits until its ledger is complete.
func startJanitor(ctx context.Context, p *programs, url string) (*system, error) {
	return run(ctx, p.janitor, []string{"janitor listens", "admin port open"},
		"--nats-url", url, "--janitor-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json", "--pprof")
}
