package daemon

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is set by the linker in released builds:
//
//	-ldflags "-X rejoin/shared/daemon.Version=v1.2.3"
//
// Otherwise the version is from the build information of the binary.
var Version string

// versionLine returns the line of --version: program, version, Go version and
// platform.
func versionLine(name string) string {
	return fmt.Sprintf("%s %s (%s %s/%s)", name, CurrentVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// CurrentVersion returns the version of the program, or "unknown".
func CurrentVersion() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return cmp.Or(info.Main.Version, "unknown")
}
