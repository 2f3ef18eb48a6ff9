package standalone

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/shared/must"
	"rejoin/shared/waittest"
)

// A running program's log is shown and changed through its NATS port, and the program
// applies the change at once and after a restart.
func TestLogCommand_RunningProgram(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	r := start(t, data, "--max-bytes=1000000000")
	request(t, http.MethodPost, "http://"+r.addrs["--edge-addr"]+eventPath, message)
	log := func(args ...string) string {
		t.Helper()
		var out []byte
		var err error
		waittest.Until(t, "a janitor acts", func() bool {
			cmd := exec.CommandContext(t.Context(), binary, append(append([]string{"log"}, args...), "--nats-url=nats://"+r.addrs["--nats-addr"])...)
			out, err = cmd.CombinedOutput()
			return err == nil || !strings.Contains(string(out), "no janitor answers")
		})
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if got, want := log("set", "--max-age=2h", "--max-events-per-stream=20000"), "max-age: 1h → 2h\nmax-events-per-stream: 10000 → 20000\nAll 16 partitions are set.\n"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	retained := func() {
		t.Helper()
		waittest.Until(t, "clients are told the new age", func() bool {
			return strings.Contains(firstBlock(t, "http://"+r.addrs["--edge-addr"]+eventPath), `"retainedFor":7200`)
		})
	}
	retained()
	log("set", "--max-bytes=4000000TB")
	r.stop()
	r = start(t, data)
	retained()
	if got := r.log.String(); !strings.Contains(got, "the log may become larger than the disk") {
		t.Error("there is no warning of a log that does not fit on the disk")
	}
	if got := log("show"); !strings.Contains(got, "max-events-per-stream    20000\n") || strings.Contains(got, "cut off") {
		t.Errorf("after a restart it shows\n%s", got)
	}
	r.stop()
}

// firstBlock returns the first block of an event stream.
func firstBlock(t *testing.T, url string) string {
	t.Helper()
	req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := client.Do(req)
	must.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	buf := make([]byte, 4096)
	n, err := resp.Body.Read(buf)
	if n == 0 {
		t.Fatal(err)
	}
	return string(buf[:n])
}
