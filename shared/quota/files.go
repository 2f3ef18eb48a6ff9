package quota

import (
	"math"
	"syscall"
)

// reservedFiles is how many files are not for clients. The standalone program has 27 open without
// clients, and one for each partition, which it takes of the others.
const reservedFiles = 256

// Files returns how many files clients may make this process open: its limit of open files
// (RLIMIT_NOFILE), without those that the program needs. 0: there is no limit.
func Files() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return files(limit.Cur)
}

// files is [Files] for a limit. A small one is halved.
func files(limit uint64) int64 {
	if limit > math.MaxInt64 { // RLIM_INFINITY
		return 0
	}
	all := int64(limit)
	return max(all-reservedFiles, all/2)
}
