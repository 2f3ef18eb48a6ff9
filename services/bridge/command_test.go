package bridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"rejoin/shared/daemon"
	"rejoin/shared/eventlog"
	"rejoin/shared/rpc"
)

func TestCommand_Environment(t *testing.T) {
	bridges := []string{"PATH=/bin", "HOME=/root", "LANG=C", "LC_ALL=C", "LC_TIME=C", "TZ=UTC", "TMPDIR=/t", "TOKEN=1=2", "LD_PRELOAD=x", "PATHS=y", "REJOIN_UPSTREAM_HEADER=z", "NO_VALUE"}
	cfg := Config{UpstreamCommand: "x"}
	for _, tt := range []struct {
		more, all, want []string
	}{
		{nil, bridges, []string{"PATH=/bin", "HOME=/root", "LANG=C", "LC_ALL=C", "LC_TIME=C", "TZ=UTC", "TMPDIR=/t"}},
		{[]string{"TOKEN", "MISSING", "LANG"}, bridges[2:], []string{"LANG=C", "LC_ALL=C", "LC_TIME=C", "TZ=UTC", "TMPDIR=/t", "TOKEN=1=2"}},
		{nil, []string{"TOKEN=1"}, []string{}}, // not nil, which os/exec takes for all of its own
	} {
		cfg.UpstreamEnv = tt.more
		c, err := cfg.command(tt.all)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, c.env); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAccount(t *testing.T) {
	u, err := user.Lookup("daemon")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		u.Username: u.Uid + ":" + u.Gid + " " + u.HomeDir, u.Uid: u.Uid + ":" + u.Gid + " " + u.HomeDir,
		u.Uid + ":7": u.Uid + ":7 " + u.HomeDir, "7654321:8": "7654321:8 /",
	} {
		c, home, err := account(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := fmt.Sprintf("%d:%d %s", c.Uid, c.Gid, home); got != want || len(c.Groups) > 0 || c.NoSetGroups {
			t.Errorf("%s is %s with the groups %v", text, got, c.Groups)
		}
	}
	for _, text := range []string{"", "no-such-user", "7654321", "0", "root", "daemon:", "daemon:x", ":1", "-1", "4294967296:1", fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())} {
		if c, _, err := account(text); err == nil {
			t.Errorf("%q is %+v", text, c)
		}
	}
}

// M7: an MCP server of another user reads the bridge's files, and has what that may do.
func TestAttackStdioServerReadsFiles(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSystem(t, eventlog.Settings{})
	cfg := testConfig("")
	cfg.MaxProcesses = 1
	cfg.UpstreamCommand = "sh -c '" + `read -r request
		printf "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"protocolVersion\":\"2025-11-25\",\"found\":\"%s\"}}\n" "$(id -u; id -g; id -G; echo $HOME; cat ` + secret + `; grep Cap /proc/self/status)" | tr "\n\t" "  "
		echo; cat >/dev/null` + "'"
	open := func() string {
		t.Helper()
		in := s.start(t, cfg)
		defer in.stop()
		a := s.do(t, rpc.Call{Action: rpc.Open, Session: uuid.NewString(), Data: []byte(initialize)})
		var m struct{ Result struct{ Found string } }
		if err := json.Unmarshal(a.Data, &m); err != nil || a.Status != http.StatusOK {
			t.Fatalf("%d %s, %v", a.Status, a.Data, err)
		}
		return m.Result.Found
	}
	if found := open(); !strings.Contains(found, " secret ") {
		t.Errorf("a server of the bridge's own user has found %q", found)
	}
	cfg.UpstreamUser = "7654321:7654322"
	if !maySwitchUser() {
		if _, err := New(cfg, s.b, daemon.NewEnv(nil)); err == nil || !strings.Contains(err.Error(), "CAP_SETUID") {
			t.Errorf("the error is %v", err)
		}
		return
	}
	found := open()
	if got := strings.Fields(found)[:4]; !slices.Equal(got, []string{"7654321", "7654322", "7654322", "/"}) {
		t.Errorf("it runs as %q", got)
	}
	if strings.Contains(found, "secret") || !strings.Contains(found, "CapPrm: 0000000000000000 CapEff: 0000000000000000") {
		t.Errorf("it has found %q", found)
	}
}
