package daemon

import (
	"os"
	"strconv"
	"syscall"
)

// protect keeps the program's secrets from other processes of its user, such as an MCP server
// that a bridge starts: those cannot read its memory and its environment, nor trace it, and
// its child processes inherit no descriptor that it inherited itself. Root may do all of it, and
// files remain readable for all users with the permission. Errors leave parts unprotected; a
// program also runs without protection.
func protect() {
	open, _ := os.ReadDir("/dev/fd")
	for _, entry := range open {
		// Go opens all of its own so that they are closed on exec.
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > int(os.Stderr.Fd()) {
			syscall.CloseOnExec(fd)
		}
	}
	hideMemory()
}
