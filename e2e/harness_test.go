// Package e2e tests the whole system from outside: the real program, real
// connections, a real browser.
package e2e

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"rejoin/shared/leaktest"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
	"rejoin/shared/waittest"
	"rejoin/shared/web/webtest"
)

// scratch is the folder of the programs that the tests build. They stay there: a program that has not
// changed since an earlier run is not linked again.
var scratch string

func TestMain(m *testing.M) {
	if api := os.Getenv(healthyAPI); api != "" {
		took, err := runHealthy(api, os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Print(took)
		os.Exit(0)
	}
	// Programs in Node are compiled once, which took 35 s of a run on two cores.
	compiled, err := filepath.Abs("../.tools/node-compiled")
	if err == nil {
		err = os.Setenv("NODE_COMPILE_CACHE", compiled)
	}
	if err == nil {
		scratch, err = filepath.Abs("../bin/e2e" + strings.Join(buildFlags, ""))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(leaktest.Run(m, append(webtest.IgnoreFasthttp(), natstest.IgnoreLeaks()...)...))
}

// built builds a program once in a test run and returns its path.
func built(t testing.TB, pkg string) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	name := programOf(pkg)
	if !builds.done[name] {
		together := []string{pkg}
		if strings.HasSuffix(pkg, "/cmd/"+name) { // ours are linked at once
			together = nil
			for _, p := range programs {
				together = append(together, p.pkg)
			}
		}
		args := slices.Concat([]string{"build", "-buildvcs=false", "-o", scratch + "/"}, buildFlags, together)
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("cannot build %s: %v\n%s", together, err, out)
		}
		for _, pkg := range together {
			builds.done[programOf(pkg)] = true
		}
	}
	return filepath.Join(scratch, name)
}

// programOf returns the name of a package's program.
func programOf(pkg string) string { return path.Base(strings.TrimSuffix(pkg, "/v2")) }

var builds = struct {
	sync.Mutex
	done map[string]bool // by the program's name
}{done: map[string]bool{}}

const rejoinPackage = "rejoin/standalone/cmd/rejoin"

// proc is the standalone program, running or not. It keeps its addresses and its
// data folder over restarts.
type proc struct {
	t    testing.TB
	data string
	args []string
	// prepare changes the command before each start; nil: nothing.
	prepare func(*exec.Cmd)
	tls     bool // the edge speaks it
	// addrs are the addresses that it listens on, by flag. No other test gets them meanwhile.
	addrs map[string]string

	*process // nil: it does not run, or was never started
}

// listening maps the log's messages to the flag whose address they have.
var listening = map[string]string{
	"edge open":       "--edge-addr",
	"ingest listens":  "--ingest-addr",
	"janitor listens": "--janitor-addr",
	"nats listens":    "--nats-addr",
	"admin port open": "--admin-addr",
}

// startProc starts the program on free ports with a data folder of its own, and
// waits until it is ready. It ends with the test.
func startProc(t testing.TB, args ...string) *proc {
	t.Helper()
	p := newProc(t, filepath.Join(t.TempDir(), "data"), args...)
	p.start()
	return p
}

// newProc is startProc for a data folder of the caller's, and does not start the program.
func newProc(t testing.TB, data string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, data: data, args: args, addrs: map[string]string{}}
	if *overTLS {
		p.speakTLS()
	}
	for _, flag := range listening {
		p.addrs[flag] = fmt.Sprintf("127.0.0.1:%d", natstest.FreePort(t))
	}
	return p
}

// procAt returns the server at a URL, for tests that publish to it or read from it.
func procAt(t testing.TB, url string) *proc {
	return &proc{t: t, addrs: map[string]string{"--edge-addr": strings.TrimPrefix(url, "http://")}}
}

// partitions is how many a log of the tests has: with the 16 that there are otherwise, a start takes twice the
// processor time.
const partitions = 4

var ofPartitions = fmt.Sprintf("--partitions=%d", partitions)

// start starts the program, on the ports that it had before.
func (p *proc) start() {
	p.t.Helper()
	args := append([]string{"--data=" + p.data, "--log-format=json", ofPartitions}, p.args...)
	for flag, addr := range p.addrs {
		args = append(args, flag+"="+addr)
	}
	cmd := exec.Command(built(p.t, rejoinPackage), args...) //nolint:noctx // launch ends it
	cmd.Env = withoutRejoin(os.Environ())
	if p.prepare != nil {
		p.prepare(cmd)
	}
	p.process = launch(p.t, cmd)
	waittest.Until(p.t, "the program is ready", func() bool {
		if p.ended() {
			p.t.Fatal("the program did not start")
		}
		return p.isReady()
	})
}

func (p *proc) isReady() bool {
	for msg, flag := range listening {
		if p.log.attr(msg, "addr") != p.addrs[flag] {
			return false
		}
	}
	a, err := try(http.MethodGet, p.url("--admin-addr")+"/readyz", "")
	return err == nil && a.status == http.StatusOK
}

// stop ends the program as Ctrl-C does, and expects exit code 0.
func (p *proc) stop() {
	p.t.Helper()
	must.NoError(p.t, p.cmd.Process.Signal(os.Interrupt))
	waittest.Receive(p.t, "the program stops", p.done)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("the program stopped with exit code %d\n%s", code, p.log.tail(20))
	}
}

// in returns the same program for a test inside the one that started it.
func (p *proc) in(t testing.TB) *proc {
	c := *p
	c.t = t
	return &c
}

// secure speaks TLS on a connection, where that is spoken.
func (p *proc) secure(flag string, conn net.Conn) net.Conn {
	if p.tls && flag == "--edge-addr" {
		return tls.Client(conn, trusting())
	}
	return conn
}

func (p *proc) url(flag string) string {
	if p.tls && flag == "--edge-addr" {
		return "https://" + p.addrs[flag]
	}
	return "http://" + p.addrs[flag]
}

// api is the address that serves the whole API.
func (p *proc) api() string { return p.url("--edge-addr") }

// process is a program that runs.
type process struct {
	cmd  *exec.Cmd
	log  *procLog      // its output that the caller does not read
	done chan struct{} // closed when it has ended
}

// launch starts a program, or with Setpgid one that starts others. It ends with the test, also when the test run
// panics. A report of the race detector in it fails the test.
func launch(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, log: &procLog{}, done: make(chan struct{})}
	cmd.SysProcAttr = cmp.Or(cmd.SysProcAttr, &syscall.SysProcAttr{})
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Stdout, cmd.Stderr = cmp.Or(cmd.Stdout, io.Writer(p.log)), cmp.Or(cmd.Stderr, io.Writer(p.log))
	must.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		for _, race := range strings.Split(p.log.String(), "WARNING: DATA RACE")[1:] {
			if strings.Count(race, "(*fileStore).setSyncTimer()") != 2 { // in nats-server alone; see docs/upstream/0032
				t.Errorf("%s has a data race:%.4000s", filepath.Base(cmd.Path), race)
			}
		}
		if t.Failed() {
			t.Logf("the last of what %s printed:\n%s", filepath.Base(cmd.Path), p.log.tail(40))
		}
	})
	return p
}

// kill ends the program as kill -9 does.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// end sends a signal and waits for the end, which may have come before.
func (p *process) end(signal syscall.Signal) {
	pid := p.cmd.Process.Pid
	if p.cmd.SysProcAttr.Setpgid {
		pid = -pid
	}
	if !p.ended() {
		_ = syscall.Kill(pid, signal) // fails when it has just ended by itself
		<-p.done
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// procLog holds the program's log.
type procLog struct{ waittest.Buffer }

// attr returns an attribute of the first line with a message, or "".
func (l *procLog) attr(msg, name string) string {
	for line := range strings.Lines(l.String()) {
		var record map[string]any
		if json.Unmarshal([]byte(line), &record) == nil && record["msg"] == msg {
			value, _ := record[name].(string)
			return value
		}
		if strings.Contains(line, ` msg="`+msg+`" `) { // with --log-format=text
			_, rest, _ := strings.Cut(line, " "+name+"=")
			value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return value
		}
	}
	return ""
}

func (l *procLog) tail(n int) string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

func withoutRejoin(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, "REJOIN_") {
			out = append(out, e)
		}
	}
	return out
}
