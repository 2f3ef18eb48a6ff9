package upstream

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Command has the program, environment and user of the processes of an MCP server. It does not change.
type Command struct {
	argv []string
	env  []string            // all of their environment
	user *syscall.Credential // the user that they run as; nil: the bridge's
}

// passedOn are the variables of the bridge's environment that processes get by
// default, besides LC_*. Any other may be a secret.
var passedOn = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// NewCommand returns the command for processes of a program in a bridge with this environment, of
// which more names the variables that they get besides the usual ones. The processes run as a user, or,
// if that is empty, as the bridge. Errors name the flag.
func NewCommand(argv, environ, more []string, as string) (*Command, error) {
	cmd := &Command{argv: argv, env: []string{}} // nil would be all of the bridge's
	names := slices.Concat(passedOn, more)
	if as != "" {
		credential, home, err := account(as)
		if err == nil && !MaySwitchUser() {
			err = errors.New("the bridge must be root, or have CAP_SETUID, CAP_SETGID and CAP_KILL")
		}
		if err != nil {
			return nil, fmt.Errorf("--upstream-user=%s: %w", as, err)
		}
		cmd.user, cmd.env = credential, append(cmd.env, "HOME="+home)
		names = slices.DeleteFunc(names, func(name string) bool { return name == "HOME" || name == "TMPDIR" })
	}
	for _, e := range environ {
		if name, _, _ := strings.Cut(e, "="); slices.Contains(names, name) || strings.HasPrefix(name, "LC_") {
			cmd.env = append(cmd.env, e)
		}
	}
	return cmd, nil
}

// Look returns an error when there is no such program.
func (c *Command) Look() error {
	if _, err := exec.LookPath(c.argv[0]); err != nil {
		return fmt.Errorf("%w: %w", errStart, err)
	}
	return nil
}

// account returns the credential of a process that runs as a user, "name" or "UID", with ":GID" for
// another group than the user's own, and the user's home folder. The process is in no other group.
func account(text string) (credential *syscall.Credential, home string, err error) {
	name, group, grouped := strings.Cut(text, ":")
	lookup := user.Lookup
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		lookup = user.LookupId
	}
	u, err := lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserIdError](err); unknown && grouped {
		u, err = &user.User{Uid: name, HomeDir: "/"}, nil
	}
	if err != nil {
		return nil, "", err
	}
	if grouped {
		u.Gid = group
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, "", err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, "", err
	}
	if uid == 0 || int(uid) == os.Geteuid() {
		return nil, "", errors.New("it must be neither root nor the bridge's own user")
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, u.HomeDir, nil
}
