package measure

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// machineTime is the processor time that the machine and, out of that, this process
// and its ended children have used.
type machineTime struct {
	at        time.Time
	all, ours time.Duration
}

func readMachineTime() (machineTime, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineTime{}, err
	}
	m := machineTime{at: time.Now()}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	fields := bytes.Fields(line)
	for i, f := range fields {
		if i == 0 || i == 4 || i == 5 || i > 8 { // "cpu", idle and iowait; guests are in user time
			continue
		}
		ticks, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return m, fmt.Errorf("/proc/stat: %w", err)
		}
		m.all += time.Duration(ticks) * 10 * time.Millisecond
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return m, err
		}
		m.ours += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return m, nil
}

// others returns how many processors were used by others since before.
func (m machineTime) others(before machineTime) string {
	used := (m.all - before.all) - (m.ours - before.ours)
	return fmt.Sprintf("Others used %.1f of %d processors meanwhile.", max(used.Seconds()/m.at.Sub(before.at).Seconds(), 0), runtime.NumCPU())
}
