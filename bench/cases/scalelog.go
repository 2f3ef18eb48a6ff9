package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"rejoin/bench/load"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// scaleLog measures the figures that depend on the number of retained events, with 1, 3 and 10
// million of them in 10,000 streams: how long an edge takes to start, and 10,000 clients two
// events behind to resume, at an edge that followed nothing and at the same one again.
func scaleLog(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 25*time.Minute)
	defer cancel()
	dir, err := p.TempDir("large-")
	if err != nil {
		return f, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rounds := 0
	for _, millions := range []int{1, 3, 10} {
		to := millions * 1_000_000 / system.StoredStreams
		if err := logOf(ctx, &f, p, dir, rounds, to); err != nil {
			return f, fmt.Errorf("%d million events: %w", millions, err)
		}
		rounds = to
	}
	for _, metric := range []string{"start", "first", "resume"} {
		f.Ratio(metric+"_10_vs_1", metric+"_s_10", metric+"_s_1")
	}
	return f, nil
}

// logOf publishes messages from to to-1 to every stream, and measures the log then.
func logOf(ctx context.Context, f *measure.Figures, p *system.Programs, dir string, from, to int) error {
	unlimited := []string{"--max-events-per-stream=-1", "--max-events-per-session=-1", "--max-bytes-per-session=-1", "--max-bytes=30GB", "--max-age=-1", "--min-free-bytes=0"}
	r, err := system.StartRejoin(ctx, p, dir, unlimited...)
	if err != nil {
		return err
	}
	acks := make([]jetstream.PubAckFuture, system.StoredStreams)
	for n := from; n < to; n++ {
		for i := range system.StoredStreams {
			ack, err := r.Store(ctx, &nats.Msg{Subject: load.SubjectOf(i), Data: load.Varied(n, i)})
			if err != nil {
				r.Close()
				return err
			}
			if n == to-3 {
				acks[i] = ack
			}
		}
	}
	err = r.Flush(ctx)
	r.Close()
	if err != nil {
		return err
	}
	start := time.Now()
	if r, err = system.StartRejoin(ctx, p, dir, unlimited...); err != nil {
		return err
	}
	defer r.Close()
	name := strconv.Itoa(to * system.StoredStreams / 1_000_000)
	f.Add("program_start_s_"+name, time.Since(start).Seconds())
	if err := measure.Quiet(ctx, r.PIDs()); err != nil {
		return err
	}
	held, err := measure.Resident(r.PIDs())
	if err != nil {
		return err
	}
	f.Add("program_resident_mb_"+name, float64(held)/1e6)
	cursors, err := load.CursorsOf(ctx, r.Conn, acks, 0)
	if err != nil {
		return err
	}
	start = time.Now()
	e, err := system.StartEdge(ctx, p, r.NATS)
	if err != nil {
		return err
	}
	defer e.Stop()
	f.Add("start_s_"+name, time.Since(start).Seconds())
	t := e.Target()
	t.Path = load.EventsPath
	for _, metric := range []string{"first_s_", "resume_s_"} {
		if err := measure.Quiet(ctx, []int{e.PID(), r.PID()}); err != nil {
			return err
		}
		took, err := resumed(ctx, t, to-2, 2, func(i int) string { return cursors[i] })
		if err != nil {
			return err
		}
		f.Add(metric+name, took.Seconds())
	}
	return nil
}

// resumed returns how long the clients of all streams take, that connect at once and miss so many
// messages from number first on.
func resumed(ctx context.Context, t load.Target, first, missing int, cursor func(i int) string) (time.Duration, error) {
	start := time.Now()
	l, err := load.New(ctx, load.Crowd{
		Clients: system.StoredStreams, Target: t, AtOnce: true,
		Stream: func(i int) int { return i },
		After:  func(i int) (string, int) { return cursor(i), first },
	})
	if err != nil {
		return 0, err
	}
	err = l.WaitFor(ctx, int64(system.StoredStreams*missing))
	took := time.Since(start)
	if err == nil {
		err = l.Settled(ctx)
	}
	return took, errors.Join(err, l.End())
}
