package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/must"
	"rejoin/shared/natstest"
)

// refuses runs the program, which must end with exit code 1 and one sentence, and
// returns the sentence.
func refuses(t *testing.T, data string, args ...string) string {
	t.Helper()
	return refusesWith(t, daemon.ExitError, data, args...)
}

// refusesWith is refuses with another exit code.
func refusesWith(t *testing.T, code int, data string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := command(t, data, args...)
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != code {
		t.Fatalf("it ended with %v\n%s", err, stderr.String())
	}
	var said []string
	for line := range strings.Lines(stderr.String()) {
		if !strings.HasPrefix(line, "{") { // the log
			said = append(said, strings.TrimSpace(line))
		}
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "rejoin: ") {
		t.Fatalf("it said %q", said)
	}
	return said[0]
}

// files are the files below a folder and their sizes.
func files(t *testing.T, folder string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && !e.IsDir() && e.Name() != lockFile {
			fmt.Fprintln(&b, path, info.Size())
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return b.String()
}

func TestRefusal_PortIsTaken(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	r := start(t, data)
	request(t, http.MethodPost, "http://"+r.addrs["--edge-addr"]+eventPath, message)
	r.stop()
	before := files(t, data)
	taken := must.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, flag := range addrFlags {
		want := "rejoin: port " + port + " on 127.0.0.1 is taken by another program; stop it or choose another with " + flag
		if got := refuses(t, data, flag+"=127.0.0.1:"+port); got != want {
			t.Errorf("it said %q, want %q", got, want)
		}
		fresh := filepath.Join(t.TempDir(), "fresh")
		refuses(t, fresh, flag+"=127.0.0.1:"+port)
		if strings.Contains(files(t, fresh), "jetstream") {
			t.Errorf("%s: a log was made", flag)
		}
	}
	must.NoError(t, taken.Close())
	if got := refuses(t, data, "--edge-addr=127.0.0.1:"+port, "--ingest-addr=localhost:"+port); !strings.Contains(got, "--ingest-addr") {
		t.Errorf("of two flags with one port it said %q", got)
	}
	if after := files(t, data); after != before {
		t.Errorf("the data folder was\n%s\nand is\n%s", before, after)
	}
}

// A log keeps the settings of the start that created it, so a start that fails creates none.
func TestRefusal_FilesOfTLS(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	if got := refuses(t, data, "--tls-cert="+data+"/cert", "--tls-key="+data+"/key", "--max-bytes=100MB"); !strings.Contains(got, "--tls-cert") {
		t.Errorf("it said %q", got)
	}
	file := filepath.Join(t.TempDir(), "empty")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	if got := refuses(t, data, "--tls-cert="+file, "--tls-key="+file, "--max-bytes=100MB"); !strings.Contains(got, "--tls-cert") {
		t.Errorf("it said %q", got)
	}
	if got := files(t, data); got != "" {
		t.Errorf("the data folder has\n%s", got)
	}
}

func TestRefusal_UnusableDataFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write := func(name, text string) {
		t.Helper()
		must.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write(file, "x")
	write(filepath.Join(dir, "foreign", "thesis.txt"), "x")
	write(filepath.Join(dir, "older", "VERSION"), "1\n")
	write(filepath.Join(dir, "older", "jetstream", "x"), "x")
	write(filepath.Join(dir, "newer", "VERSION"), "4\n")
	write(filepath.Join(dir, "newer", "jetstream", "x"), "x")
	write(filepath.Join(dir, "damaged", "VERSION"), "")
	for name, c := range map[string]struct {
		data string
		args []string
		says string
	}{
		"a file":              {file, nil, "cannot use " + file + " as the data folder (not a directory); make it writable, or choose another with --data"},
		"below a file":        {file + "/data", nil, "as the data folder (not a directory)"},
		"not to be made":      {"/proc/rejoin", nil, "cannot use /proc/rejoin as the data folder"},
		"of somebody else":    {dir + "/foreign", nil, "holds other files and was not made by rejoin; choose an empty folder with --data"},
		"of an older version": {dir + "/older", nil, dir + `/older has version "1" and this rejoin reads version "3"; use the rejoin that wrote it, or choose another folder with --data`},
		"of a newer version":  {dir + "/newer", nil, dir + `/newer has version "4" and this rejoin reads version "3"; use the rejoin that wrote it, or choose another folder with --data`},
		"of no version":       {dir + "/damaged", nil, `has version ""`},
		"on a full disk":      {dir + "/full", []string{"--min-free-bytes=" + strconv.Itoa(1<<60)}, "of free space, and --min-free-bytes requires 1048576.0 TiB; free some space, or choose another folder with --data"},
		"too small for a log": {dir + "/small", []string{"--max-bytes=" + strconv.Itoa(1<<60)}, "does not fit where"},
	} {
		t.Run(name, func(t *testing.T) {
			state := func() string { return strings.ReplaceAll(files(t, dir), dir+"/small/VERSION 2\n", "") }
			before := state()
			if got := refuses(t, c.data, c.args...); !strings.Contains(got, c.says) {
				t.Errorf("it said %q, want %q", got, c.says)
			}
			if after := state(); after != before {
				t.Errorf("the folder was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

func TestRefusal_DataFolderIsInUse(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	r := start(t, data)
	if got, want := refuses(t, data), data+" is in use by another rejoin; stop that one, or choose another folder with --data"; !strings.Contains(got, want) {
		t.Errorf("it said %q, want %q", got, want)
	}
	pid, err := os.ReadFile(filepath.Join(data, lockFile))
	if err != nil || strings.TrimSpace(string(pid)) != strconv.Itoa(r.cmd.Process.Pid) {
		t.Errorf("the lock file says %q (%v), want %d", pid, err, r.cmd.Process.Pid)
	}
	if status, body := request(t, http.MethodPost, "http://"+r.addrs["--edge-addr"]+eventPath, message); status != http.StatusCreated {
		t.Errorf("the first program was disturbed: %d %s", status, body)
	}
	r.stop()
	start(t, data).stop()
}

func TestRefusal_LogOfAnotherVersion(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	r := start(t, data, "--max-bytes=1000000000") // which fits into the server that changes the version
	request(t, http.MethodPost, "http://"+r.addrs["--edge-addr"]+eventPath, message)
	r.stop()
	setVersion := func(version string) {
		server := natstest.StartIn(t, data)
		defer server.Stop()
		nc := server.Connect()
		defer nc.Close()
		js := natstest.JetStream(t, nc)
		stream := must.Value(js.Stream(t.Context(), "MCP_0"))(t)
		cfg := stream.CachedInfo().Config
		cfg.Metadata["rejoin.version"] = version
		for k := range cfg.Metadata {
			if !strings.HasPrefix(k, "rejoin.") {
				delete(cfg.Metadata, k)
			}
		}
		must.Value(js.UpdateStream(t.Context(), cfg))(t)
	}
	setVersion("1")
	if got, want := refuses(t, data), "rejoin: "+data+`: the stored log does not match: it has version "1" and this program reads version "3"; use the program that wrote it, or begin another log; --data chooses another folder`; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
	setVersion(eventlog.Version)
	r = start(t, data)
	if _, body := request(t, http.MethodGet, "http://"+r.addrs["--edge-addr"]+eventPath, ""); !strings.Contains(body, message) {
		t.Errorf("the event is gone: %s", body)
	}
	r.stop()
}

// A process that is being started has a copy of every descriptor until it runs its program.
func TestFolder_FreeWhileAProcessStarts(t *testing.T) {
	data := t.TempDir()
	f := must.Value(openFolder(data, 0))(t)
	if _, err := openFolder(data, 0); err == nil || !strings.Contains(err.Error(), "in use by another rejoin") {
		t.Fatalf("the folder is open twice: %v", err)
	}
	held := must.Value(syscall.Dup(int(f.lock.Fd())))(t)
	defer func() { _ = syscall.Close(held) }()
	f.close()
	if pid, err := os.ReadFile(filepath.Join(data, lockFile)); err != nil || len(pid) > 0 { // it may be another process' by now
		t.Errorf("the lock file still says %q, %v", pid, err)
	}
	again := must.Value(openFolder(data, 0))(t)
	again.close()
}
