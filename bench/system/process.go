package system

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// command is a program that ends with ctx and with this process, whatever happens to it.
func command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// End stops a program in order, or at all.
func End(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM) // fails when it has ended
	hard := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer hard.Stop()
	_ = cmd.Wait() // how it ends is of no interest
}

// children returns a process and its children.
func children(pid int) []int {
	pids := []int{pid}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return pids // it has ended, which shows elsewhere
	}
	for f := range strings.FieldsSeq(string(data)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// StartSelf starts a server of this program in a process of its own, and returns the address that
// it prints.
func StartSelf(ctx context.Context, args ...string) (cmd *exec.Cmd, addr string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd = command(ctx, self, args...)
	cmd.Stderr = os.Stderr
	addr, err = begin(cmd)
	return cmd, addr, err
}

func begin(cmd *exec.Cmd) (addr string, err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		End(cmd)
	}
	return strings.TrimSpace(line), err
}
