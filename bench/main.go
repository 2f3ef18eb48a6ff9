// Command bench measures the whole of Rejoin on the loopback interface, beside the
// limits that nothing built like it can pass, in the same run.
//
//	go run ./bench                                  every case, three times
//	CASES=fan-out,idle-9000 REPS=1 go run ./bench   groups of cases, or single ones
//
// For each figure it prints one line "BENCH <case> <metric> <value>", where the
// value is the median over the repetitions, and a table with the spread; at the end it
// prints which bars hold. Ratios are taken within one repetition.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"rejoin/bench/cases"
	"rejoin/bench/mcp"
	"rejoin/bench/measure"
	"rejoin/bench/system"
)

func main() {
	for _, serve := range []func(args []string) error{system.Serve, mcp.Serve} {
		if err := serve(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, os.Getenv("CASES"), os.Getenv("REPS"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

// bench runs cases and prints their figures. A case that fails does not keep the others
// from running.
func bench(ctx context.Context, names, reps string, w io.Writer) error {
	n := 3
	if reps != "" {
		var err error
		if n, err = strconv.Atoi(reps); err != nil || n < 1 {
			return fmt.Errorf("REPS is %q, want a positive number", reps)
		}
	}
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	p, err := system.Build(ctx)
	if err != nil {
		return err
	}
	defer p.Clean()
	if !p.HasNchan() {
		_, _ = fmt.Fprintln(w, "Nchan is left out: nginx with libnginx-mod-nchan is not installed.")
	}
	var verdicts []measure.Verdict
	var failed error
	for _, c := range chosen {
		held, err := measure.Case(w, c.Name, c.What, n, func() (measure.Figures, error) { return c.Run(ctx, p) })
		verdicts = append(verdicts, held...)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			_, _ = fmt.Fprintf(w, "%s failed: %v\n", c.Name, err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	measure.PrintVerdicts(w, verdicts)
	return failed
}

// choose returns the cases of a list of groups and cases, all when it is empty.
func choose(names string) ([]cases.Case, error) {
	all := cases.All()
	if strings.TrimSpace(names) == "" {
		return all, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		of := func(c cases.Case) bool { return c.Group == name || c.Name == name }
		if !slices.ContainsFunc(all, of) {
			return nil, fmt.Errorf("there is no case and no group %q", name)
		}
		for _, c := range all {
			if of(c) {
				wanted[c.Name] = true
			}
		}
	}
	return slices.DeleteFunc(all, func(c cases.Case) bool { return !wanted[c.Name] }), nil
}
