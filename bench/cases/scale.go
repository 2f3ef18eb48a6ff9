package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
	"rejoin/shared/event"
)

const (
	scaleEvents  = 200_000
	scaleStreams = 1600 // in 160 sessions
	// coldRounds is how often each partition is read by a first reader.
	coldRounds = 12
)

// scaleEdges measures the cost of further edges: NATS and all edges together for an event that no
// client receives, at one edge and at eight, whose subscribers the proxy of deploy/ spreads; how
// long the first reader of a partition waits; and 10,000 clients that have lost their edge.
func scaleEdges(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for _, n := range []int{1, 8} {
		if err := followedBy(ctx, &f, p, n); err != nil {
			return f, fmt.Errorf("%d edges: %w", n, err)
		}
	}
	f.Ratio("cpu_vs_one", "cpu_us_8", "cpu_us_1")
	f.Ratio("windows_vs_one", "windows_mb_8", "windows_mb_1")
	err := edgeGone(ctx, &f, p)
	f.Ratio("moved_vs_stayed", "moved_seconds", "stayed_seconds")
	return f, err
}

// idleSubscribers connects one subscriber for each session, to a stream without events.
func idleSubscribers(ctx context.Context, addr string) (*load.Load, error) {
	return load.New(ctx, load.Crowd{
		Clients: scaleStreams / load.StreamsPerSession, Stream: func(i int) int { return i * load.StreamsPerSession },
		Target: load.Target{Addr: addr, Path: func(stream int) string {
			return "/v1/sessions/" + load.SessionOf(stream) + "/streams/quiet/events?from=now"
		}},
	})
}

// followedBy measures the cost of n edges for an event.
func followedBy(ctx context.Context, f *measure.Figures, p *system.Programs, n int) error {
	log, err := system.StartBareLog(ctx, p, system.BareNATS, "")
	if err != nil {
		return err
	}
	defer log.Close()
	pids := [][]int{log.PIDs()}
	var all []int
	var edges []*system.Program
	defer func() {
		for _, e := range edges {
			e.Stop()
		}
	}()
	for range n {
		e, err := system.StartEdge(ctx, p, log.URL)
		if err != nil {
			return err
		}
		edges = append(edges, e)
		pids = append(pids, []int{e.PID()})
		all = append(all, e.PID())
	}
	addr, stop, err := system.StartProxy(ctx, p, edges)
	if err != nil {
		return fmt.Errorf("HAProxy: %w", err)
	}
	defer stop()
	l, err := idleSubscribers(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = l.End() }()
	follow := 0.0
	for _, e := range edges {
		followed, err := e.Metric(ctx, "rejoin_edge_partitions_followed")
		if err != nil {
			return err
		}
		follow += followed / load.Partitions
	}
	f.Add(fmt.Sprintf("edges_of_a_partition_%d", n), follow)
	if err := measure.Quiet(ctx, all); err != nil {
		return err
	}
	empty, err := measure.Resident(all)
	if err != nil {
		return err
	}
	used := func() ([]time.Duration, error) {
		var each []time.Duration
		for _, of := range pids {
			took, err := measure.CPU(of)
			if err != nil {
				return nil, err
			}
			each = append(each, took)
		}
		return each, nil
	}
	before, err := used()
	if err != nil {
		return err
	}
	for i := range scaleEvents {
		if err := log.Publish(ctx, i%scaleStreams, load.Varied(i, 0)); err != nil {
			return err
		}
	}
	if err := log.Flush(ctx); err != nil {
		return err
	}
	if err := measure.Quiet(ctx, slices.Concat(pids...)); err != nil {
		return err
	}
	after, err := used()
	if err != nil {
		return err
	}
	sum, busiest := time.Duration(0), time.Duration(0)
	for i := range after {
		took := after[i] - before[i]
		sum += took
		if i > 0 {
			busiest = max(busiest, took)
		}
	}
	perEvent := func(d time.Duration) float64 { return d.Seconds() * 1e6 / scaleEvents }
	nats := after[0] - before[0]
	f.Add(fmt.Sprintf("nats_us_%d", n), perEvent(nats))
	f.Add(fmt.Sprintf("cpu_us_%d", n), perEvent(sum))
	full, err := measure.Resident(all)
	if err != nil {
		return err
	}
	f.Add(fmt.Sprintf("windows_mb_%d", n), float64(full-empty)/1e6)
	if n == 1 {
		return coldReaders(ctx, f, p, log.URL)
	}
	f.Add("busiest_vs_mean", busiest.Seconds()/((sum-nats).Seconds()/float64(n)))
	return nil
}

// coldReaders measures first readers of partitions that no client follows, from the connect to the
// first event, which is the oldest of a stream.
func coldReaders(ctx context.Context, f *measure.Figures, p *system.Programs, nats string) error {
	e, err := system.StartEdge(ctx, p, nats, "--partition-linger=0s")
	if err != nil {
		return err
	}
	defer e.Stop()
	of := map[int]int{} // a stream of each partition
	for stream := range scaleStreams {
		of[event.Partition(load.SessionOf(stream), load.Partitions)] = stream
	}
	var all []time.Duration
	for range coldRounds {
		for _, stream := range of {
			took, err := firstEvent(ctx, e, stream)
			if err != nil {
				return err
			}
			all = append(all, took)
			if err := untilForgotten(ctx, e); err != nil {
				return err
			}
		}
	}
	f.AddLatencies("cold_", all)
	return nil
}

// firstClient opens a connection for each request.
var firstClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

// firstEvent returns how long a subscriber waits for its first event.
func firstEvent(ctx context.Context, e *system.Program, stream int) (time.Duration, error) {
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Edge+load.EventsPath(stream), nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := firstClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	buf, got := make([]byte, 64<<10), 0
	for {
		n, err := resp.Body.Read(buf[got:])
		if got += n; strings.Contains(string(buf[:got]), `"jsonrpc"`) {
			return time.Since(start), nil
		}
		if errors.Is(err, io.EOF) || got == len(buf) {
			return 0, errors.New("no event came")
		}
		if err != nil {
			return 0, err
		}
	}
}

// untilForgotten waits until an edge follows no partition.
func untilForgotten(ctx context.Context, e *system.Program) error {
	for {
		n, err := e.Metric(ctx, "rejoin_edge_partitions_followed")
		if err != nil || n == 0 {
			return err
		}
		if err := measure.Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// edgeGone measures 10,000 clients that reconnect two events behind, each of a stream of its own:
// to an edge that follows all partitions, and to one that follows none.
func edgeGone(ctx context.Context, f *measure.Figures, p *system.Programs) error {
	log, err := p.Stored(ctx)
	if err != nil {
		return err
	}
	r, err := system.StartRejoin(ctx, p, log.Dir)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := measure.Quiet(ctx, r.PIDs()); err != nil { // the janitor reads the whole log first
		return err
	}
	for _, to := range []struct {
		prefix string
		args   []string
	}{{"stayed_", []string{system.FollowAll}}, {"moved_", nil}} {
		e, err := system.StartEdge(ctx, p, r.NATS, to.args...)
		if err != nil {
			return err
		}
		pids := []int{e.PID()}
		if err = measure.Quiet(ctx, append(pids, r.PIDs()...)); err == nil {
			t := e.Target()
			t.Path = load.EventsPath
			err = storm(ctx, f, to.prefix, pids, t, system.StoredRecent, func(i int) string { return log.Recent[i] })
		}
		var reads, scans float64
		if err == nil {
			reads, err = e.Metric(ctx, "rejoin_edge_log_reads_total")
		}
		if err == nil {
			scans, err = e.Metric(ctx, "rejoin_edge_log_scans_total")
		}
		f.Add(to.prefix+"log_reads", reads+scans)
		e.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}
