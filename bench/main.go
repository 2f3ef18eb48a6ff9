// Command bench measures the whole of Rejoin on the loopback interface, beside the
// limits that nothing built like it can pass, in the same run.
//
//	go run ./bench                                  every case, three times
//	CASES=latency REPS=1 go run ./bench             a part
//
// For each figure it prints one line "BENCH <case> <metric> <value>", where the
// value is the median over the repetitions, and a table with the spread.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// benchCase is one case: run measures it once.
type benchCase struct {
	name string
	what string
	run  func(ctx context.Context, program string) (figures, error)
}

func cases() []benchCase {
	return []benchCase{
		{"latency", "one stream, 100 clients, 200 events/s of 512 B: time from publish to client", latency},
		{"fanout-100", "one stream, 100 clients, 512 B", fanout(100)},
		{"fanout-1000", "one stream, 1,000 clients, 512 B", fanout(1000)},
		{"fanout-5000", "one stream, 5,000 clients, 512 B", fanout(5000)},
		{"idle-9000", "9,000 connections on 9,000 streams, nothing happens", idle(9000)},
		{"idle-18000", "18,000 connections on 18,000 streams, nothing happens", idle(18000)},
	}
}

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "raw" || os.Args[1] == "raw-batch") {
		fmt.Fprintln(os.Stderr, "bench:", serveRaw(os.Args[1] == "raw-batch"))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

func run(ctx context.Context) error {
	reps := 3
	if v := os.Getenv("REPS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return fmt.Errorf("REPS is %q, want a positive number", v)
		}
		reps = n
	}
	chosen, err := choose(os.Getenv("CASES"))
	if err != nil {
		return err
	}
	program, clean, err := build(ctx)
	if err != nil {
		return err
	}
	defer clean()
	for _, c := range chosen {
		r := newReport(c)
		for range reps {
			f, err := c.run(ctx, program)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.add(f)
		}
		r.print(os.Stdout)
	}
	return nil
}

func choose(names string) ([]benchCase, error) {
	all := cases()
	if names == "" {
		return all, nil
	}
	var chosen []benchCase
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(c benchCase) bool { return c.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("there is no case %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
