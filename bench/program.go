package main

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

	"rejoin/bench/measure"
)

// programs are what is measured, in a folder that also has all that a run writes.
type programs struct {
	dir     string
	rejoin  string // the standalone program
	edge    string // the edge alone
	ingest  string // ingest alone
	janitor string // the janitor alone
	bridge  string // a bridge alone
	nginx   string // nginx with Nchan; empty when it is not installed
	nchan   string // Nchan's module
	stored  *stored
}

// build builds the programs.
func build(ctx context.Context) (*programs, error) {
	dir, err := os.MkdirTemp("", "rejoin-bench-")
	if err != nil {
		return nil, err
	}
	p := &programs{dir: dir, rejoin: filepath.Join(dir, "rejoin"), edge: filepath.Join(dir, "sse-edge"), ingest: filepath.Join(dir, "ingest"), janitor: filepath.Join(dir, "janitor"), bridge: filepath.Join(dir, "bridge")}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir, "rejoin/standalone/cmd/rejoin", "rejoin/services/sse-edge/cmd/sse-edge", "rejoin/services/ingest/cmd/ingest", "rejoin/services/janitor/cmd/janitor", "rejoin/services/bridge/cmd/bridge")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		p.clean()
		return nil, fmt.Errorf("cannot build the programs: %w", err)
	}
	p.nginx, p.nchan = findNchan()
	return p, nil
}

// tempDir makes a folder that clean removes.
func (p *programs) tempDir(pattern string) (string, error) { return os.MkdirTemp(p.dir, pattern) }

// hasNchan says whether Nchan is installed.
func (p *programs) hasNchan() bool { return p.nginx != "" }

func (p *programs) clean() { _ = os.RemoveAll(p.dir) }

// system is a running program on free ports.
type system struct {
	cmd     *exec.Cmd
	scratch string // the folder that goes with it, or ""
	edge    string // URL of the edge, or of the standalone program's one origin
	ingest  string // address of ingest
	janitor string // URL of the janitor
	nats    string // URL of NATS, of the standalone program
	admin   string // URL of the admin port
	drained chan struct{}
}

// start runs the standalone program on a data folder, or on a new one when that is
// "", and waits until it is ready.
func start(ctx context.Context, p *programs, dir string, args ...string) (*system, error) {
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

// startEdge starts an edge alone.
func startEdge(ctx context.Context, p *programs, nats string, args ...string) (*system, error) {
	return run(ctx, p.edge, []string{"edge open", "admin port open"}, append([]string{
		"--nats-url", nats, "--edge-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json",
	}, args...)...)
}

// startIngest starts an ingest alone.
func startIngest(ctx context.Context, p *programs, nats string) (*system, error) {
	return run(ctx, p.ingest, []string{"ingest listens", "admin port open"},
		"--nats-url", nats, "--ingest-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json")
}

// startJanitor starts a janitor of its own, and waits until its ledger is complete.
func startJanitor(ctx context.Context, p *programs, url string) (*system, error) {
	return run(ctx, p.janitor, []string{"janitor listens", "admin port open"},
		"--nats-url", url, "--janitor-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json", "--pprof")
}

// startBridge starts a bridge before an MCP server.
func startBridge(ctx context.Context, p *programs, nats, upstream string) (*system, error) {
	return run(ctx, p.bridge, []string{"admin port open"},
		"--nats-url", nats, "--upstream", upstream, "--bridge-name", "bench", "--admin-addr", "127.0.0.1:0", "--log-format", "json")
}

// readyWithin is how long a program may take to get ready: it may have a large log to read.
const readyWithin = 5 * time.Minute

// run runs a program of ours and waits until it is ready. told are the log lines
// that it must write before, each with an address.
func run(ctx context.Context, program string, told []string, args ...string) (*system, error) {
	s := &system{cmd: command(ctx, program, args...), drained: make(chan struct{})}
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
		s.stop()
		return nil, fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return s, nil
}

// learn reads the addresses from the program's log, which a goroutine reads until
// the program ends, and waits until the program is ready.
func (s *system) learn(ctx context.Context, logs io.Reader, told []string) error {
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
	s.edge, s.nats, s.admin = "http://"+found["edge open"], "nats://"+found["nats listens"], "http://"+found["admin port open"]
	s.ingest, s.janitor = found["ingest listens"], "http://"+found["janitor listens"]
	for {
		if _, err := get(ctx, s.admin+"/readyz"); err == nil {
			return nil
		}
		if err := measure.Pause(ctx, 10*time.Millisecond); err != nil {
			return errors.New("it did not get ready")
		}
	}
}

func (s *system) pid() int { return s.cmd.Process.Pid }

// kill kills it. It is to be stopped nevertheless.
func (s *system) kill() error { return s.cmd.Process.Kill() }

func (s *system) stop() {
	end(s.cmd)
	<-s.drained
	if s.scratch != "" {
		_ = os.RemoveAll(s.scratch)
	}
}

// metric returns the sum of all series of a metric.
func (s *system) metric(ctx context.Context, name string) (float64, error) {
	sums, err := s.metrics(ctx, name)
	if err != nil {
		return 0, err
	}
	return sums[0], nil
}

// metrics returns the sums of all series of metrics, as they are at one time.
func (s *system) metrics(ctx context.Context, names ...string) ([]float64, error) {
	text, err := get(ctx, s.admin+"/metrics")
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

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	return bodyOf(client, req)
}

// bodyOf returns the body of an answer, which must be 200.
func bodyOf(c *http.Client, req *http.Request) (string, error) {
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
