package bridge

import (
	"context"
	"errors"
	"fmt"
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
	// drainWithin bounds the reading of what a process has left behind.
	drainWithin = time.Second
)

// stderrBytes is how much of a line of a process's stderr goes to the log.
const stderrBytes = 8 << 10

// process is a running program in a process group of its own.
//
//	startProcess ──▶ wait: one goroutine, until the program has ended
//	             └─▶ complain: one, stderr to the log
type process struct {
	log    *slog.Logger
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	exited chan struct{}
	work   sync.WaitGroup
	end    sync.Once
}

// startProcess starts a program. stop must be called.
func startProcess(c *command, log *slog.Logger) (*process, error) {
	p := &process{log: log, exited: make(chan struct{})}
	p.cmd = exec.Command(c.argv[0], c.argv[1:]...) //nolint:gosec,noctx // the operator's own command, which stop ends
	p.cmd.Env = c.env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.user}
	var theirs [3]*os.File
	var err error
	defer func() {
		for _, f := range theirs {
			if f != nil {
				_ = f.Close()
			}
		}
		if err != nil {
			p.closeAll()
		}
	}()
	if theirs[0], p.stdin, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stdout, theirs[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stderr, theirs[2], err = os.Pipe(); err != nil {
		return nil, err
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err = withoutAmbient(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("the MCP server cannot be started: %w", err)
	}
	p.work.Go(p.wait)
	p.work.Go(p.complain)
	return p, nil
}

func (p *process) closeAll() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// wait waits for the program's end, and ends what it has left running: its group, and the
// reading of what that has open.
func (p *process) wait() {
	err := p.cmd.Wait()
	p.log.Info("a process of the MCP server has ended", "state", p.cmd.ProcessState.String(), "error", err)
	close(p.exited)
	p.signal(syscall.SIGKILL)
	deadline := time.Now().Add(drainWithin)
	_ = p.stdout.SetReadDeadline(deadline)
	_ = p.stderr.SetReadDeadline(deadline)
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// complain writes stderr to the log.
func (p *process) complain() {
	l := newLines(&leftover{f: p.stderr}, stderrBytes)
	for {
		var long []byte
		line, err := l.next(func(part []byte) { long = append(long, part[:min(len(part), stderrBytes-len(long))]...) })
		if errors.Is(err, errTooLarge) {
			line, err = long, nil
		}
		if err != nil {
			return
		}
		p.log.Info("the MCP server says", "line", strings.ToValidUTF8(string(line), "\uFFFD"))
	}
}

// leftover reads a pipe of a program. Once that has ended, which sets a deadline, it reads
// what is there, and no more: others may have the pipe open.
type leftover struct{ f *os.File }

func (l *leftover) Read(b []byte) (int, error) {
	n, err := l.f.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	// The deadline passed while somebody was busy with what was read before.
	if err := l.f.SetReadDeadline(time.Now().Add(drainWithin)); err != nil {
		return 0, err
	}
	return l.f.Read(b)
}

// write writes a line to the program, in at most the time that is left until the
// deadline. After an error the program has got a part of it, and is of no use any more.
func (p *process) write(line []byte, deadline time.Time) error {
	if err := p.stdin.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := p.stdin.Write(append(line[:len(line):len(line)], '\n'))
	return err
}

// stop ends the program: its input ends, then it is asked, then it is killed. It returns
// when nothing is left, and may be called repeatedly.
func (p *process) stop() {
	p.end.Do(func() {
		_ = p.stdin.Close()
		for _, step := range []struct {
			grace  time.Duration
			signal syscall.Signal
		}{{stdinGrace, syscall.SIGTERM}, {termGrace, syscall.SIGKILL}} {
			if p.endsWithin(step.grace) {
				break
			}
			p.signal(step.signal)
		}
		p.work.Wait()
	})
}

func (p *process) endsWithin(d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	select {
	case <-p.exited:
		return true
	case <-ctx.Done():
		return false
	}
}
