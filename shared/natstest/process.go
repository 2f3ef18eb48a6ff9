package natstest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// childVariable says to a test program that it is the server of another one, and where
// its store is.
const childVariable = "NATSTEST_STORE"

// Child runs a server in place of the tests when this program was started by
// [StartProcess], and does not return then. It is the first call of a TestMain.
func Child() {
	dir := os.Getenv(childVariable)
	if dir == "" {
		return
	}
	if err := serve(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve runs a server until standard input ends, as it does with the parent.
func serve(dir string) error {
	opt := options(dir)
	srv, err := run(&opt)
	if err != nil {
		return err
	}
	fmt.Println(srv.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	srv.Shutdown()
	srv.WaitForShutdown()
	return nil
}

// StartProcess runs a server in a process of its own and returns its URL, for tests whose
// package calls [Child]. The race detector then does not see the server: nats-server
// 2.15.2 reads what it writes elsewhere when the limit for each subject of a stream
// shrinks while messages are stored (docs/upstream/0017). The server ends with the test.
func StartProcess(t testing.TB) (url string) {
	t.Helper()
	cmd := exec.Command(os.Args[0]) //nolint:gosec,noctx // this program, ended below
	cmd.Env = append(os.Environ(), childVariable+"="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // with the race detector, what it found in the server
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the NATS server's process did not start: %v", err)
	}
	return strings.TrimSpace(line)
}

// options are those of a server on a free port of the loopback interface.
func options(dir string) server.Options {
	return server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		NoLog: true, NoSigs: true, ServerName: "natstest",
		JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 16 << 30,
		MaxPayload: 1<<20 + 4<<10, // a log's largest message by default, and its headers
	}
}
