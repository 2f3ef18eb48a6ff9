// Package leaktest fails the tests of a package that leak goroutines.
package leaktest

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rejoin/shared/racetest"
)

// patience is how long goroutines may take to end. goleak alone waits for less than half
// a second, which a busy machine takes to close a connection.
const patience = 30 * time.Second

// Run runs the tests, and returns the exit code: not 0 either when goroutines do not end
// that are not ignored. Property tests of rapid make 100 checks, and with the race detector as
// many as take as long, unless -rapid.checks sets a number.
//
// GOGC is 300 unless it is set: with the default of 100, a fifth of the processor time of tests with
// servers in the process was the garbage collector's.
func Run(m *testing.M, ignored ...goleak.Option) (code int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
	if checks := flag.Lookup("rapid.checks"); checks != nil {
		if err := checks.Value.Set(strconv.Itoa(100 / racetest.Slowdown)); err != nil {
			panic(err)
		}
	}
	if code = m.Run(); code != 0 {
		return code
	}
	if err := wait(patience, ignored...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// wait returns when all goroutines have ended, or reports the remaining ones after that time.
func wait(within time.Duration, ignored ...goleak.Option) error {
	for deadline := time.Now().Add(within); ; {
		if err := goleak.Find(ignored...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
