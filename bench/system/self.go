package system

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
)

// Serve serves what the arguments of this program ask for, as StartSelf passes them, and returns
// only errors then. It returns nil at once when they ask for nothing of the kind.
func Serve(args []string) error {
	if len(args) == 0 {
		return nil
	}
	switch kind := args[0]; {
	case len(args) == 1 && (kind == RawEach || kind == rawBatch || kind == RawReplay):
		return serveRaw(kind)
	case len(args) == 1 && kind == bareFiber:
		return serveFiber()
	case len(args) == 2 && (kind == BareJetStream || kind == BareNATS || kind == BareCluster):
		return serveJetStream(kind, args[1])
	}
	return nil
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
