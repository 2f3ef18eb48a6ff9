// Package system starts the measured programs: Rejoin's, and beside them JetStream alone, the raw
// servers, Nchan and a handler that does nothing. Those without a program of their own are this
// program, started again with arguments that Serve takes.
package system

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"rejoin/bench/load"
	"rejoin/bench/measure"
)

// Programs are the measured programs, in a folder that also has all files that a run writes.
type Programs struct {
	dir     string
	rejoin  string // the standalone program
	edge    string // the edge alone
	ingest  string // ingest alone
	janitor string // the janitor alone
	bridge  string // a bridge alone
	nginx   string // nginx with Nchan; empty when it is not installed
	nchan   string // Nchan's module
	stored  *Stored
}

// Build builds the programs.
func Build(ctx context.Context) (*Programs, error) {
	dir, err := os.MkdirTemp("", "rejoin-bench-")
	if err != nil {
		return nil, err
	}
	p := &Programs{dir: dir, rejoin: filepath.Join(dir, "rejoin"), edge: filepath.Join(dir, "sse-edge"), ingest: filepath.Join(dir, "ingest"), janitor: filepath.Join(dir, "janitor"), bridge: filepath.Join(dir, "bridge")}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir, "rejoin/standalone/cmd/rejoin", "rejoin/services/sse-edge/cmd/sse-edge", "rejoin/services/ingest/cmd/ingest", "rejoin/services/janitor/cmd/janitor", "rejoin/services/bridge/cmd/bridge")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		p.Clean()
		return nil, fmt.Errorf("cannot build the programs: %w", err)
	}
	p.nginx, p.nchan = findNchan()
	return p, nil
}

// TempDir makes a folder that Clean removes.
func (p *Programs) TempDir(pattern string) (string, error) { return os.MkdirTemp(p.dir, pattern) }

// HasNchan reports whether Nchan is installed.
func (p *Programs) HasNchan() bool { return p.nginx != "" }

// Clean removes the folder.
func (p *Programs) Clean() { _ = os.RemoveAll(p.dir) }

// Program is a running program on free ports.
type Program struct {
	cmd     *exec.Cmd
	scratch string // the folder that is removed with it, or ""
	Edge    string // URL of the edge, or of the standalone program's one origin
	Ingest  string // address of ingest
	Janitor string // URL of the janitor
	NATS    string // URL of NATS, of the standalone program
	Admin   string // URL of the admin port
	drained chan struct{}
}

// Start runs the standalone program on a data folder, or on a new one when that is
// "", and waits until it is ready.
func Start(ctx context.Context, p *Programs, dir string, args ...string) (*Program, error) {
	scratch := ""
	if dir == "" {
		var err error
		if scratch, err = os.MkdirTemp(p.dir, "data-"); err != nil {
			return nil, err
		}
		dir = scratch
	}
	s, err := run(ctx, p.rejoin, []string{"edge open", "nats listens", "admin port open"}, append([]string{
		"--data", dir, "--edge-addr", "127.0.0.1:0", "--ingest-addr", "127.0.0.1:0", "--janitor-addr", "127.0.0.1:0",
		"--nats-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json",
	}, args...)...)
	if err != nil {
		_ = os.RemoveAll(scratch)
		return nil, err
	}
	s.scratch = scratch
	return s, nil
}

// StartEdge starts an edge alone.
func StartEdge(ctx context.Context, p *Programs, nats string, args ...string) (*Program, error) {
	return run(ctx, p.edge, []string{"edge open", "admin port open"}, append([]string{
		"--nats-url", nats, "--edge-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json",
	}, args...)...)
}

// StartIngest starts an ingest alone.
func StartIngest(ctx context.Context, p *Programs, nats string) (*Program, error) {
	return run(ctx, p.ingest, []string{"ingest listens", "admin port open"},
		"--nats-url", nats, "--ingest-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json")
}

// StartJanitor starts a janitor of its own, and waits until its ledger is complete.
func StartJanitor(ctx context.Context, p *Programs, url string) (*Program, error) {
	return run(ctx, p.janitor, []string{"janitor listens", "admin port open"},
		"--nats-url", url, "--janitor-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json", "--pprof")
}

// StartBridge starts a bridge before an MCP server.
func StartBridge(ctx context.Context, p *Programs, nats, upstream string) (*Program, error) {
	return run(ctx, p.bridge, []string{"admin port open"},
		"--nats-url", nats, "--upstream", upstream, "--bridge-name", "bench", "--admin-addr", "127.0.0.1:0", "--log-format", "json")
}

// readyWithin is how long a program may take to get ready: it may have a large log to read.
const readyWithin = 5 * time.Minute

// run runs a program of ours and waits until it is ready. told are the log lines
// that it must write before, each with an address.
func run(ctx context.Context, program string, told []string, args ...string) (*Program, error) {
	s := &Program{cmd: command(ctx, program, args...), drained: make(chan struct{})}
	logs, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := s.learn(ctx, logs, told); err != nil {
		s.Stop()
		return nil, fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return s, nil
}

// learn reads the addresses from the program's log, which a goroutine reads until
// the program ends, and waits until the program is ready.
func (s *Program) learn(ctx context.Context, logs io.Reader, told []string) error {
	type line struct{ Msg, Addr, Error string }
	lines := make(chan line, 1024)
	go func() {
		defer close(s.drained)
		defer close(lines)
		in := bufio.NewScanner(logs)
		for in.Scan() {
			var l line
			if json.Unmarshal(in.Bytes(), &l) != nil {
				continue
			}
			select {
			case lines <- l:
			default: // the addresses are not awaited any more
			}
		}
	}()
	found, last := map[string]string{}, line{}
	for missing := len(told); missing > 0; {
		select {
		case l, ok := <-lines:
			if !ok {
				return fmt.Errorf("it ended before it was ready: %s %s", last.Msg, last.Error)
			}
			last = l
			for _, msg := range told {
				if l.Msg == msg && found[msg] == "" {
					found[msg] = l.Addr
					missing--
				}
			}
		case <-ctx.Done():
			return fmt.Errorf("it did not tell its addresses: %v", found)
		}
	}
	s.Edge, s.NATS, s.Admin = "http://"+found["edge open"], "nats://"+found["nats listens"], "http://"+found["admin port open"]
	s.Ingest, s.Janitor = found["ingest listens"], "http://"+found["janitor listens"]
	for {
		if _, err := Get(ctx, s.Admin+"/readyz"); err == nil {
			return nil
		}
		if err := measure.Pause(ctx, 10*time.Millisecond); err != nil {
			return errors.New("it did not get ready")
		}
	}
}

// PID is its process.
func (s *Program) PID() int { return s.cmd.Process.Pid }

// Kill kills it. It is to be stopped nevertheless.
func (s *Program) Kill() error { return s.cmd.Process.Kill() }

// Stop ends the program.
func (s *Program) Stop() {
	End(s.cmd)
	<-s.drained
	if s.scratch != "" {
		_ = os.RemoveAll(s.scratch)
	}
}

// Metric returns the sum of all series of a metric.
func (s *Program) Metric(ctx context.Context, name string) (float64, error) {
	sums, err := s.Metrics(ctx, name)
	if err != nil {
		return 0, err
	}
	return sums[0], nil
}

// Metrics returns the sums of all series of metrics, as they are at one time.
func (s *Program) Metrics(ctx context.Context, names ...string) ([]float64, error) {
	text, err := Get(ctx, s.Admin+"/metrics")
	if err != nil {
		return nil, err
	}
	sums := make([]float64, len(names))
	for i, name := range names {
		if sums[i], err = sumOf(text, name); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

func sumOf(text, name string) (sum float64, err error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "{") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

// Get returns the body of an answer, which must be 200.
func Get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	return BodyOf(client, req)
}

// BodyOf returns the body of an answer, which must be 200.
func BodyOf(c *http.Client, req *http.Request) (string, error) {
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", req.URL, resp.Status)
	}
	return string(body), err
}

// Target is an edge, or the standalone program, to clients that begin now, or at their event ID.
func (s *Program) Target() load.Target {
	return load.Target{Addr: strings.TrimPrefix(s.Edge, "http://"), Sequenced: true, Path: func(stream int) string { return load.EventsPath(stream) + "?from=now" }}
}

// findNchan returns nginx and Nchan's module, or nothing.
func findNchan() (nginx, module string) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return "", ""
		}
	}
	for _, dir := range []string{"/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/lib/nginx/modules"} {
		module := filepath.Join(dir, "ngx_nchan_module.so")
		if _, err := os.Stat(module); err == nil {
			return nginx, module
		}
	}
	return "", ""
}
