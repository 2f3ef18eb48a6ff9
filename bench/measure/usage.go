package measure

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU returns the processor time that processes have used.
func CPU(pids []int) (time.Duration, error) {
	var ticks int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		for _, f := range fields[11:13] { // utime, stime (proc(5), fields 14 and 15)
			v, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, err
			}
			ticks += v
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on Linux
}

// Resident returns the resident memory of processes, in bytes. Shared memory counts once:
// it is the proportional set size.
func Resident(pids []int) (int64, error) {
	var total int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		_, rest, ok := strings.Cut(string(data), "\nPss:")
		if !ok {
			return 0, fmt.Errorf("process %d has no resident memory", pid)
		}
		kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			return 0, err
		}
		total += kb * 1024
	}
	return total, nil
}

// Quiet waits until processes have used less than a tenth of a processor for a
// second, or for half a minute.
func Quiet(ctx context.Context, pids []int) error {
	for range 30 {
		before, err := CPU(pids)
		if err != nil {
			return err
		}
		if err := Pause(ctx, time.Second); err != nil {
			return err
		}
		after, err := CPU(pids)
		if err != nil {
			return err
		}
		if after-before < 100*time.Millisecond {
			return nil
		}
	}
	return nil
}

// Pause waits, or returns the error of ctx.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// AddResident adds how much memory processes keep.
func (f *Figures) AddResident(metric string, pids []int) error {
	held, err := Resident(pids)
	f.Add(metric+"_resident_mb", float64(held)/1e6)
	return err
}
