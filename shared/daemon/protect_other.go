//go:build !linux

package daemon

// hideMemory does nothing where the system has no such thing.
func hideMemory() {}
