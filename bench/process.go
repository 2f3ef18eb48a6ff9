package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// command is a program that ends with ctx and with this process, whatever happens to it.
func command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// end stops a program in order, or at all.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM) // fails when it has ended
	hard := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer hard.Stop()
	_ = cmd.Wait() // how it ends is of no interest
}

// cpu returns the processor time that processes have used.
func cpu(pids []int) (time.Duration, error) {
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

// resident returns the resident memory of processes, in bytes. What they share
// counts once: it is the proportional set size.
func resident(pids []int) (int64, error) {
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

// children returns a process and its children.
func children(pid int) []int {
	pids := []int{pid}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return pids // it has ended, which shows elsewhere
	}
	for f := range strings.FieldsSeq(string(data)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// quiet waits until processes have used less than a tenth of a processor for a
// second, or for half a minute.
func quiet(ctx context.Context, pids []int) error {
	for range 30 {
		before, err := cpu(pids)
		if err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		after, err := cpu(pids)
		if err != nil {
			return err
		}
		if after-before < 100*time.Millisecond {
			return nil
		}
	}
	return nil
}

// pause waits, or returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
