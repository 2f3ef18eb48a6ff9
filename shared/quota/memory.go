package quota

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// DefaultMemory is how many bytes clients may make a program hold where neither GOMEMLIMIT nor
// a control group sets a limit: 64 MiB. The garbage collector takes as much again.
const DefaultMemory = 64 << 20

// Memory returns how many bytes clients may make this process hold by default: a quarter of
// GOMEMLIMIT or of the limit of its control group, whichever is less, and [DefaultMemory] when
// neither is set.
func Memory() int64 { return memory(debug.SetMemoryLimit(-1), os.DirFS("/")) }

func memory(limit int64, root fs.FS) int64 {
	if limit = min(limit, cgroupLimit(root)); limit == math.MaxInt64 {
		return DefaultMemory
	}
	return limit / 4
}

// cgroupLimit returns the smallest memory limit of the process' control group and those above
// it, of version 2 or 1; [math.MaxInt64] when none of them has a limit.
func cgroupLimit(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		mount, file := "sys/fs/cgroup", "memory.max"
		switch {
		case !ok:
			continue
		case controllers == "memory":
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case controllers != "":
			continue
		}
		for dir := path.Join("/", group); ; dir = path.Dir(dir) {
			limit = min(limit, readLimit(root, path.Join(mount, dir, file)))
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

// unlimited is the value from which on a control group of version 1 has no limit: its file has
// the largest multiple of a page.
const unlimited = math.MaxInt64 &^ (1<<16 - 1)

func readLimit(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 || n >= unlimited { // "max"
		return math.MaxInt64
	}
	return n
}
