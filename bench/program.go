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
	"syscall"
	"time"
)

// build makes the standalone program in a folder of its own.
func build(ctx context.Context) (program string, clean func(), err error) {
	dir, err := os.MkdirTemp("", "rejoin-bench-")
	if err != nil {
		return "", nil, err
	}
	program = filepath.Join(dir, "rejoin")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "rejoin/standalone/cmd/rejoin")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("cannot build the program: %w", err)
	}
	return program, func() { _ = os.RemoveAll(dir) }, nil
}

// system is a running standalone program on free ports and a folder of its own.
type system struct {
	cmd  *exec.Cmd
	dir  string
	edge string // URL of the one origin
	nats string // URL of NATS
}

// start runs the program and waits until it is ready.
func start(ctx context.Context, program string, args ...string) (*system, error) {
	dir, err := os.MkdirTemp("", "rejoin-bench-data-")
	if err != nil {
		return nil, err
	}
	s := &system{dir: dir}
	args = append([]string{
		"--data", dir, "--edge-addr", "127.0.0.1:0", "--ingest-addr", "127.0.0.1:0", "--janitor-addr", "127.0.0.1:0",
		"--nats-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--log-format", "json",
	}, args...)
	s.cmd = exec.CommandContext(ctx, program, args...) //nolint:gosec // the program was built by this one
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	logs, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.learn(ctx, logs); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// learn reads the addresses from the program's log, and goes on reading it.
func (s *system) learn(ctx context.Context, logs io.Reader) error {
	found := map[string]string{}
	lines := make(chan map[string]any, 64)
	go func() {
		defer close(lines)
		in := bufio.NewScanner(logs)
		for in.Scan() {
			var line map[string]any
			if json.Unmarshal(in.Bytes(), &line) == nil {
				select {
				case lines <- line:
				default: // nobody waits for addresses any more
				}
			}
		}
	}()
	deadline := time.After(30 * time.Second)
	for found["edge open"] == "" || found["nats listens"] == "" || found["admin port open"] == "" {
		select {
		case line, ok := <-lines:
			if !ok {
				return errors.New("the program ended before it was ready")
			}
			msg, _ := line["msg"].(string)
			if addr, ok := line["addr"].(string); ok {
				found[msg] = addr
			}
		case <-deadline:
			return fmt.Errorf("the program did not tell its addresses: %v", found)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.edge, s.nats = "http://"+found["edge open"], "nats://"+found["nats listens"]
	for {
		resp, err := http.Get("http://" + found["admin port open"] + "/readyz") //nolint:noctx // bounded below
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-deadline:
			return errors.New("the program did not get ready")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *system) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}
