package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The pauses of an orderly end (MCP 2025-11-25, lifecycle, shutdown of stdio).
const (
	stdinGrace = 5 * time.Second // from the end of its input to SIGTERM
	termGrace  = 5 * time.Second // from there to SIGKILL
	// drainWithin bounds the reading of the output that an ended process has left.
	drainWithin = time.Second
)

// stderrBytes is how much of a line of a process's stderr is logged.
const stderrBytes = 8 << 10

// ProcessFiles is how many files a [Process] takes of the bridge: three pipes, and its pidfd.
const ProcessFiles = 4

// Process is a running program in a process group of its own.
//
//	StartProcess ──▶ wait: one goroutine, until the program has ended
//	             └─▶ complain: one, stderr to the log
type Process struct {
	Log    *slog.Logger // for lines about this process
	cmd    *exec.Cmd
	Stdin  *os.File
	Stdout *os.File
	stderr *os.File
	Exited chan struct{}
	work   sync.WaitGroup
	end    sync.Once
}

// StartProcess starts a program. Stop must be called.
func StartProcess(c *Command, log *slog.Logger) (*Process, error) {
	p := &Process{Log: log, Exited: make(chan struct{})}
	p.cmd = exec.Command(c.argv[0], c.argv[1:]...) //nolint:gosec,noctx // the operator's own command, which Stop ends
	p.cmd.Env = c.env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.user}
	var theirs [3]*os.File
	var err error
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // an error for nil
		}
		if err != nil {
			p.CloseAll()
		}
	}()
	if theirs[0], p.Stdin, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.Stdout, theirs[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stderr, theirs[2], err = os.Pipe(); err != nil {
		return nil, err
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err = withoutAmbient(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("%w: %w", errStart, err)
	}
	p.work.Go(p.wait)
	p.work.Go(p.complain)
	return p, nil
}

// CloseAll closes the bridge's ends of the pipes.
func (p *Process) CloseAll() {
	for _, f := range []*os.File{p.Stdin, p.Stdout, p.stderr} {
		_ = f.Close() // an error for nil
	}
}

// wait waits for the program's end, and then ends the remaining processes of its group, and the
// reading of the pipes that they have open.
func (p *Process) wait() {
	err := p.cmd.Wait()
	level := slog.LevelInfo
	if err == nil {
		level = slog.LevelDebug // each session has one
	}
	p.Log.Log(context.Background(), level, "a process of the MCP server has ended", "state", p.cmd.ProcessState.String(), "error", err)
	close(p.Exited)
	p.Signal(syscall.SIGKILL)
	deadline := time.Now().Add(drainWithin)
	_ = p.Stdout.SetReadDeadline(deadline)
	_ = p.stderr.SetReadDeadline(deadline)
}

// Signal sends a signal to the process and those that it has started.
func (p *Process) Signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// complain writes stderr to the log.
func (p *Process) complain() {
	l := NewLines(&Leftover{F: p.stderr}, stderrBytes)
	for {
		var long []byte
		line, err := l.Next(func(part []byte) { long = append(long, part[:min(len(part), stderrBytes-len(long))]...) })
		if errors.Is(err, ErrTooLarge) {
			line, err = long, nil
		}
		if err != nil {
			return
		}
		p.Log.Info("the MCP server says", "line", strings.ToValidUTF8(string(line), "\uFFFD"))
	}
}

// pipeBytes is the most that a pipe holds, unless root raises fs.pipe-max-size.
const pipeBytes = 1 << 20

// Leftover reads a pipe of a program. Once the program has ended, which sets a deadline, it reads the
// remaining bytes, and no more: others may have the pipe open, and write to it forever.
type Leftover struct {
	F    *os.File
	rest *bytes.Reader // the bytes in the pipe after the deadline; nil before
}

func (l *Leftover) Read(b []byte) (int, error) {
	if l.rest == nil {
		n, err := l.F.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		// The deadline passed while the reader was busy with earlier bytes.
		if err := l.F.SetReadDeadline(time.Now().Add(drainWithin)); err != nil {
			return 0, err
		}
		rest, _ := io.ReadAll(io.LimitReader(l.F, pipeBytes)) // the deadline ends it while others have the pipe open
		l.rest = bytes.NewReader(rest)
	}
	return l.rest.Read(b)
}

// Write writes a line to the program, which may stop reading for the time within. That time begins again while the
// program is busy. After an error the program has a part of the line, and cannot be used any more.
func (p *Process) Write(line []byte, within time.Duration, busy func() bool) error {
	line = append(line[:len(line):len(line)], '\n')
	for {
		idle := !busy() // else it may be about to read at the end of the time
		if err := p.Stdin.SetWriteDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		n, err := p.Stdin.Write(line)
		if line = line[n:]; !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 && idle {
			return err
		}
	}
}

// Stop ends the program: it closes the input, then sends SIGTERM, then SIGKILL. It returns
// when the program and its goroutines have ended, and may be called repeatedly.
func (p *Process) Stop() {
	p.end.Do(func() {
		_ = p.Stdin.Close()
		for _, step := range []struct {
			grace  time.Duration
			signal syscall.Signal
		}{{stdinGrace, syscall.SIGTERM}, {termGrace, syscall.SIGKILL}} {
			if p.endsWithin(step.grace) {
				break
			}
			p.Signal(step.signal)
		}
		p.work.Wait()
	})
}

func (p *Process) endsWithin(d time.Duration) bool {
	select {
	case <-p.Exited:
		return true
	case <-time.After(d):
		return false
	}
}
