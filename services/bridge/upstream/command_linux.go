package upstream

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// MaySwitchUser reports whether the bridge may start processes as another user, and end them.
func MaySwitchUser() bool {
	var sets [2]unix.CapUserData // 32 capabilities each
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]) != nil {
		return false
	}
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL
	return sets[0].Effective&needed == needed
}

// withoutAmbient starts a process that inherits none of the bridge's capabilities: a change of
// user removes only root's.
func withoutAmbient(start func() error) error {
	runtime.LockOSThread() // a process inherits those of the thread
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // before Linux 4.3 there are none
	return start()
}
