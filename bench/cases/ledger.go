package cases

import (
	"context"
	"time"

	"rejoin/bench/measure"
	"rejoin/bench/system"
)

// The memory that a ledger may take, in bytes.
const (
	ledgerEventBytes  = 32
	ledgerStreamBytes = 200
	ledgerBound       = ledgerEventBytes*system.StoredEvents + ledgerStreamBytes*system.StoredStreams
)

// ledgerCase measures how long a janitor takes from its start until its ledger is
// complete, on a log of 1,000,000 events, beside a plain ordered consumer that reads
// the same headers; and how much more memory it takes then than on an empty log.
func ledgerCase(ctx context.Context, p *system.Programs) (measure.Figures, error) {
	var f measure.Figures
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	log, err := p.Stored(ctx)
	if err != nil {
		return f, err
	}
	empty, err := janitorOn(ctx, p, "", nil)
	if err != nil {
		return f, err
	}
	full, err := janitorOn(ctx, p, log.Dir, &f)
	if err != nil {
		return f, err
	}
	f.Add("seconds", full.took.Seconds())
	f.Ratio("vs_drain", "seconds", "drain_seconds")
	f.Ratio("vs_drain16", "seconds", "drain16_seconds")
	f.Add("resident_mb", float64(full.resident)/1e6)
	f.Add("heap_mb", full.heap/1e6)
	f.Add("empty_resident_mb", float64(empty.resident)/1e6)
	f.Add("empty_heap_mb", empty.heap/1e6)
	f.Add("resident_vs_bound", float64(full.resident-empty.resident)/ledgerBound)
	f.Add("heap_vs_bound", (full.heap-empty.heap)/ledgerBound)
	return f, nil
}

// ledgerTaken are the time and memory of a ledger.
type ledgerTaken struct {
	took     time.Duration
	resident int64
	heap     float64 // bytes in use after a collection
}

// janitorOn measures a janitor on the log in a data folder, or on an empty one, and, when there are
// figures, the drains of the log.
func janitorOn(ctx context.Context, p *system.Programs, dir string, f *measure.Figures) (t ledgerTaken, err error) {
	log, err := system.StartBareLog(ctx, p, system.BareNATS, dir)
	if err != nil {
		return t, err
	}
	defer log.Close()
	if err := measure.Quiet(ctx, log.PIDs()); err != nil {
		return t, err
	}
	start := time.Now()
	j, err := system.StartJanitor(ctx, p, log.URL)
	if err != nil {
		return t, err
	}
	t.took = time.Since(start)
	err = t.measure(ctx, j)
	j.Stop()
	if err != nil || f == nil {
		return t, err
	}
	return t, addDrains(ctx, f, log.Conn, drained{headersOnly: true})
}

// measure measures the memory of a janitor that has read its log.
func (t *ledgerTaken) measure(ctx context.Context, j *system.Program) error {
	pids := []int{j.PID()}
	err := measure.Quiet(ctx, pids)
	if err != nil {
		return err
	}
	if t.resident, err = measure.Resident(pids); err != nil {
		return err
	}
	if _, err := system.Get(ctx, j.Admin+"/debug/pprof/heap?gc=1"); err != nil {
		return err
	}
	t.heap, err = j.Metric(ctx, "go_memstats_heap_alloc_bytes")
	return err
}
