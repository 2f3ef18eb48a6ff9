package upstream

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rejoin/shared/must"
)

// A bridge that may not switch users reports that at its start, also when it is root in a container
// without capabilities.
func TestCommand_UserWithoutCapabilities(t *testing.T) {
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its capabilities
		var none [2]unix.CapUserData
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			got <- err
			return
		}
		_, err := NewCommand([]string{"x"}, os.Environ(), nil, "7654321:1")
		got <- err
	}()
	if err := <-got; err == nil || !strings.Contains(err.Error(), "--upstream-user=7654321:1: the bridge must be root, or have CAP_SETUID") {
		t.Errorf("the error is %v", err)
	}
}

func TestWithoutAmbient(t *testing.T) {
	if !MaySwitchUser() {
		return // there are no capabilities to inherit
	}
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the capability that it has raised
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		err := unix.Capget(&hdr, &sets[0])
		sets[0].Inheritable |= 1 << unix.CAP_KILL
		if err == nil {
			err = unix.Capset(&hdr, &sets[0])
		}
		if err == nil {
			err = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_KILL, 0, 0)
		}
		if err != nil {
			got <- err
			return
		}
		got <- withoutAmbient(func() error {
			raised, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, unix.CAP_KILL, 0, 0)
			if err == nil && raised != 0 {
				err = errors.New("a process would inherit a capability")
			}
			return err
		})
	}()
	must.NoError(t, <-got)
}
