package upstream

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// ended returns a pipe of a program that has ended: the deadline of its reader has passed.
func ended(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must.NoError(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	must.NoError(t, r.SetReadDeadline(time.Now()))
	return r, w
}

func TestLeftover_ChildThatWritesOn(t *testing.T) {
	r, w := ended(t)
	go func() {
		for err := error(nil); err == nil; { // until the pipe is closed
			_, err = w.WriteString("a line\n")
		}
	}()
	over := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, &Leftover{F: r})
		over <- err
	}()
	must.NoError(t, waittest.Receive(t, "the reader reaches an end", over))
}

// A reader that is busy for longer than drainWithin between any two reads receives everything.
func TestLeftover_BusyReader(t *testing.T) {
	r, w := ended(t)
	const all = 20_000
	must.Value(w.Write(make([]byte, all)))(t)
	_ = w.Close()
	l, n := &Leftover{F: r}, 0
	for buffer := make([]byte, 4096); ; {
		got, err := l.Read(buffer)
		n += got
		if err != nil {
			break
		}
		must.NoError(t, r.SetReadDeadline(time.Now()))
	}
	if n != all {
		t.Errorf("it received %d bytes of %d", n, all)
	}
}

// Write waits for a program that does not read while it works, as long as it works, and then for the usual time.
func TestProcess_ReadsLate(t *testing.T) {
	for _, works := range []bool{true, false} {
		ends, reads := filepath.Join(t.TempDir(), "ends"), filepath.Join(t.TempDir(), "reads")
		script := `until [ -e "$0" ]; do sleep 0.01; done; exec cat >"$1"`
		p, err := StartProcess(must.Value(NewCommand([]string{"sh", "-c", script, ends, reads}, os.Environ(), nil, ""))(t), slog.New(slog.DiscardHandler))
		must.NoError(t, err)
		asked := 0
		err = p.Write(make([]byte, 2*pipeBytes), 100*time.Millisecond, func() bool {
			if asked++; works && asked == 2 { // its work ends, and it reads
				must.NoError(t, os.WriteFile(ends, nil, 0o600))
				waittest.Until(t, "it reads", func() bool { is, err := os.Stat(reads); return err == nil && is.Size() > 0 })
			}
			return works && asked != 2
		})
		if (err == nil) != works {
			t.Errorf("it works %t: %v", works, err)
		}
		p.Signal(syscall.SIGKILL)
		p.Stop()
		p.CloseAll()
	}
}
