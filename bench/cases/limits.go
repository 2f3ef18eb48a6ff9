package cases

import (
	"context"
	"errors"
	"strconv"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	"rejoin/shared/event"
)

const (
	hotSession = "hot"
	// hotStreams are so many that none reaches its own limit: the session does.
	hotStreams = 50
	hotRate    = 5000 // events/s
	hotTime    = time.Minute
	hotLimit   = 10_000 // events of one session that a log keeps by default
	hotSample  = 100 * time.Millisecond
	// hotMargin is the number of events that a session may hold above its limit.
	hotMargin = hotLimit / 8
)

func hotSubject(stream string) string {
	return event.Subject{Partition: event.Partition(hotSession, load.Partitions), Session: hotSession, Stream: stream}.String()
}

// limitsCase measures for how long a session that is written to without a pause holds
// more than its limits and an eighth: events that the janitor has not announced to be
// removed. The janitor runs alone, beside JetStream alone, so that its CPU time can be told
// from others'.
func limitsCase(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	log, err := system.StartBareLog(ctx, p, system.BareJetStream, "")
	if err != nil {
		return f, err
	}
	defer log.Close()
	j, err := system.StartJanitor(ctx, p, log.URL)
	if err != nil {
		return f, err
	}
	defer j.Stop()
	before, err := measure.CPU([]int{j.PID()})
	if err != nil {
		return f, err
	}
	pace := load.StartPacer(ctx, log.LogPublisher, hotRate, func(n int) string { return hotSubject(strconv.Itoa(n % hotStreams)) })
	begun := time.Now()
	above, err := watchHot(ctx, j, begun.Add(hotTime))
	took := time.Since(begun)
	acks := pace.Take()
	if err := errors.Join(err, pace.Stop()); err != nil {
		return f, err
	}
	after, err := measure.CPU([]int{j.PID()})
	if err != nil {
		return f, err
	}
	f.Add("longest_above_s", above.longest.Seconds())
	f.Add("above_of_time", above.total.Seconds()/took.Seconds())
	f.Add("most_events", float64(above.most))
	f.Add("events_per_s", float64(acks.Total)/took.Seconds())
	f.AddHistogram("ack_", acks)
	f.Add("janitor_cpu", (after-before).Seconds()/took.Seconds())
	return f, nil
}

// hotTimes are how long a session held too many events.
type hotTimes struct {
	longest, total time.Duration // in a row, and in all
	most           uint64        // events
	since          time.Time     // it holds too many; zero: it does not
}

// add adds a sample.
func (h *hotTimes) add(events uint64, now time.Time) {
	h.most = max(h.most, events)
	if !h.since.IsZero() {
		h.longest = max(h.longest, now.Sub(h.since))
	}
	switch tooMuch := events > hotLimit+hotMargin; {
	case tooMuch && h.since.IsZero():
		h.since = now
	case !tooMuch && !h.since.IsZero():
		h.total += now.Sub(h.since)
		h.since = time.Time{}
	}
}

// watchHot samples the events of the session, which are all events of the log: those that
// the janitor counts, and those that it has yet to read.
func watchHot(ctx context.Context, j *system.Program, until time.Time) (h hotTimes, err error) {
	for now := time.Now(); now.Before(until); now = time.Now() {
		held, err := j.Metrics(ctx, "rejoin_janitor_retained_events", "rejoin_janitor_lag_events")
		if err != nil {
			return h, err
		}
		h.add(uint64(held[0]+held[1]), now)
		if err := measure.Pause(ctx, time.Until(now.Add(hotSample))); err != nil {
			return h, err
		}
	}
	if !h.since.IsZero() {
		h.total += until.Sub(h.since)
	}
	return h, nil
}
