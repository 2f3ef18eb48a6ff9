//go:build !linux

package upstream

import "os"

// MaySwitchUser reports whether the bridge may start processes as another user, and end them.
func MaySwitchUser() bool { return os.Geteuid() == 0 }

// withoutAmbient starts a process. There are no capabilities that it could inherit.
func withoutAmbient(start func() error) error { return start() }
