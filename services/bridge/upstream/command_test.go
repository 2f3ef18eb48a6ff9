package upstream

import (
	"fmt"
	"os"
	"os/user"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rejoin/shared/must"
)

func TestCommand_Environment(t *testing.T) {
	bridges := []string{"PATH=/bin", "HOME=/root", "LANG=C", "LC_ALL=C", "LC_TIME=C", "TZ=UTC", "TMPDIR=/t", "TOKEN=1=2", "LD_PRELOAD=x", "PATHS=y", "REJOIN_UPSTREAM_HEADER=z", "NO_VALUE"}
	for _, tt := range []struct {
		more, all, want []string
	}{
		{nil, bridges, []string{"PATH=/bin", "HOME=/root", "LANG=C", "LC_ALL=C", "LC_TIME=C", "TZ=UTC", "TMPDIR=/t"}},
		{[]string{"TOKEN", "MISSING", "LANG"}, bridges[2:], []string{"LANG=C", "LC_ALL=C", "LC_TIME=C", "TZ=UTC", "TMPDIR=/t", "TOKEN=1=2"}},
		{nil, []string{"TOKEN=1"}, []string{}}, // not nil, which os/exec takes for all of its own
	} {
		c := must.Value(NewCommand([]string{"x"}, tt.all, tt.more, ""))(t)
		if diff := cmp.Diff(tt.want, c.env); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAccount(t *testing.T) {
	u := must.Value(user.Lookup("daemon"))(t)
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
