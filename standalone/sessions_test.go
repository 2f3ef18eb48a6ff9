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
	rejoin := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary, append(args, url)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	rejoin(message, "publish", "one", "main")
	if name := rejoin("", "sessions", "create", "two"); name != "two\n" {
		t.Errorf("created %q", name)
	}
	chosen := strings.TrimSpace(rejoin("", "sessions", "create"))
	waittest.Until(t, "the janitor counts the event", func() bool { return strings.Contains(rejoin("", "sessions"), "\none ") })
	var list string
	waittest.Until(t, "all are listed", func() bool { // the registry's copy may be behind the ledger
		list = rejoin("", "sessions", "--state=open", "--json")
		return strings.Count(list, "\n") >= 3
	})
	if strings.Count(list, "\n") != 3 || !strings.Contains(list, `{"session":"one",`) || !strings.Contains(list, `{"session":"`+chosen+`",`) {
		t.Errorf("the list is\n%s", list)
	}
	waittest.Until(t, "the edge answers", func() bool {
		return strings.Contains(rejoin("", "status"), "\nedges       1\nclients     0\nsessions    3 (1 with events, in 1 streams)\nevents      1\n")
	})
	if got := rejoin("", "connections", "one"); got != "event streams: 0; clients: 0; edges: 1\n" {
		t.Errorf("connections: %s", got)
	}
	if got := rejoin("", "gaps"); !strings.HasPrefix(got, "gaps since ") || !strings.HasSuffix(got, ": 0; edges: 1\n") {
		t.Errorf("gaps: %s", got)
	}
	rejoin("", "sessions", "close", "one", "main")
	waittest.Until(t, "the stream is closed", func() bool { return strings.Contains(rejoin("", "sessions", "one"), "\nmain    closed ") })
	rejoin("", "sessions", "close", "two", "--clear")
	waittest.Until(t, "the session is closed", func() bool { return strings.HasPrefix(rejoin("", "sessions", "two"), "two is closed: 0 events") })
	r.stop()
}
