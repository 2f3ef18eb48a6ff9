package cases

import (
	"context"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

const (
	slowClients = 1000
	slowTime    = 5 * time.Second
	// The sockets of a client that does not read take about 3 MB on loopback.
	fillMessages     = 400
	fillMessageBytes = 16 << 10
)

// slow measures the cost of stalled clients for the healthy ones beside them: two servers
// one after the other with the same load, one of them with stalled clients.
func slow(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	without, err := slowOf(ctx, &f, p, "without_", 0)
	if err != nil {
		return f, err
	}
	with, err := slowOf(ctx, &f, p, "", slowClients)
	if err != nil {
		return f, err
	}
	f.Ratio("p99_vs_without", "p99_ms", "without_p99_ms")
	f.Add("kb_each_stalled", float64(with-without)/1024/slowClients)
	return f, nil
}

// slowOf returns the resident memory at the end.
func slowOf(ctx context.Context, f *measure.Figures, p *system.Programs, prefix string, stalled int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	s, err := system.StartRejoin(ctx, p, "")
	if err != nil {
		return 0, err
	}
	defer s.Close()
	healthy, err := load.New(ctx, load.Crowd{Clients: slowClients, Target: s.Target()})
	if err != nil {
		return 0, err
	}
	defer func() { _ = healthy.End() }()
	others, err := load.New(ctx, load.Crowd{Clients: stalled, Target: s.Target(), Stalled: true})
	if err != nil {
		return 0, err
	}
	defer func() { _ = others.End() }()
	r := &load.Runner{Server: s, Load: healthy, Streams: 1, Clients: slowClients, Bytes: fillMessageBytes}
	// The edge closes a client that reads nothing for 10 s: the measurement has to end
	// before.
	if _, _, err := r.Burst(ctx, fillMessages, 16); err != nil {
		return 0, err
	}
	r.Bytes = load.MessageBytes
	healthy.ResetLatencies()
	each, err := r.Paced(ctx, 20_000/slowClients, slowTime)
	if err != nil {
		return 0, err
	}
	memory, err := measure.Resident(s.PIDs())
	if err != nil {
		return 0, err
	}
	f.AddHistogram(prefix, healthy.Latencies())
	f.Add(prefix+"cpu_us", each)
	if stalled > 0 {
		f.Add("stalled_and_open", float64(others.Established()))
	}
	return memory, nil
}
