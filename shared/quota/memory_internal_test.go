package quota

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestMemory(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, tt := range map[string]struct {
		limit int64 // GOMEMLIMIT
		root  fstest.MapFS
		want  int64
	}{
		"nothing is known": {math.MaxInt64, nil, DefaultMemory},
		"GOMEMLIMIT":       {400 << 20, nil, 100 << 20},
		"version 2": {math.MaxInt64, fstest.MapFS{
			"proc/self/cgroup":                 file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max":     file("max\n"),
			"sys/fs/cgroup/a/memory.max":       file("536870912\n"),
			"sys/fs/cgroup/other/memory.max":   file("4096\n"),
			"sys/fs/cgroup/a/b/c/memory.max":   file("4096\n"),
			"sys/fs/cgroup/memory.max":         file("1073741824\n"),
			"sys/fs/cgroup/a/b/memory.current": file("1\n"),
		}, 128 << 20},
		"in a namespace of its own": {math.MaxInt64, fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("536870912\n"),
		}, 128 << 20},
		"version 1": {math.MaxInt64, fstest.MapFS{
			"proc/self/cgroup": file("5:cpu,cpuacct:/a\n4:memory:/a\n"),
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": file("268435456\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   file("9223372036854771712\n"),
		}, 64 << 20},
		"version 1 without a limit": {math.MaxInt64, fstest.MapFS{
			"proc/self/cgroup":                           file("4:memory:/a\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, DefaultMemory},
		"the smaller one": {100 << 20, fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("536870912\n"),
		}, 25 << 20},
		"what cannot be read": {math.MaxInt64, fstest.MapFS{
			"proc/self/cgroup":         file("nonsense\n0::/\n"),
			"sys/fs/cgroup/memory.max": file("lots"),
		}, DefaultMemory},
	} {
		if got := memory(tt.limit, tt.root); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestFiles(t *testing.T) {
	for limit, want := range map[uint64]int64{260: 130, 512: 256, 1024: 768, 1 << 20: 1<<20 - 256, math.MaxUint64: 0} {
		if got := files(limit); got != want {
			t.Errorf("of %d files %d are for clients, want %d", limit, got, want)
		}
	}
}
