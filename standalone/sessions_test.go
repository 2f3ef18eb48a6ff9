package standalone

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rejoin/shared/waittest"
)

func TestSessionsCommand_RunningProgram(t *testing.T) {
	t.Parallel()
	r := start(t, filepath.Join(t.TempDir(), "data"))
	url := "--url=http://" + r.addrs["--edge-addr"]
	try := func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, append(args, url)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	rejoin := func(stdin string, args ...string) string {
		t.Helper()
		out, err := try(stdin, args...)
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	// shows repeats the command: a list leaves out a service that has not answered within a second.
	shows := func(what string, ok func(string) bool, args ...string) string {
		t.Helper()
		return waittest.Value(t, what, func() string { out, _ := try("", args...); return out }, ok)
	}
	contains := func(part string) func(string) bool {
		return func(out string) bool { return strings.Contains(out, part) }
	}
	rejoin(message, "publish", "one", "main")
	if name := rejoin("", "sessions", "create", "two"); name != "two\n" {
		t.Errorf("created %q", name)
	}
	chosen := strings.TrimSpace(rejoin("", "sessions", "create"))
	shows("the janitor counts the event", contains("\none "), "sessions")
	list := shows("all are listed", func(out string) bool { return strings.Count(out, "\n") >= 3 }, "sessions", "--state=open", "--json") // the registry's copy may be behind the ledger
	if strings.Count(list, "\n") != 3 || !strings.Contains(list, `{"session":"one",`) || !strings.Contains(list, `{"session":"`+chosen+`",`) {
		t.Errorf("the list is\n%s", list)
	}
	shows("the edge answers", contains("\nedges       1\nclients     0\nsessions    3 (1 with events, in 1 streams)\nevents      1\n"), "status")
	shows("no connection", func(out string) bool { return out == "event streams: 0; clients: 0; edges: 1\n" }, "connections", "one")
	shows("no gap", func(out string) bool {
		return strings.HasPrefix(out, "gaps since ") && strings.HasSuffix(out, ": 0; edges: 1\n")
	}, "gaps")
	rejoin("", "sessions", "close", "one", "main")
	shows("the stream is closed", contains("\nmain    closed "), "sessions", "one")
	rejoin("", "sessions", "close", "two", "--clear")
	shows("the session is closed", func(out string) bool { return strings.HasPrefix(out, "two is closed: 0 events") }, "sessions", "two")
	r.stop()
}
