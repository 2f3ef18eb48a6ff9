//go:build !linux

package daemon

// hideMemory does nothing on systems without PR_SET_DUMPABLE.
func hideMemory() {}
