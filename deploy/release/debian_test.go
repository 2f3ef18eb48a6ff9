package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rejoin/shared/must"
)

func TestRelease_DebianPackage(t *testing.T) {
	t.Parallel()
	tools := exec.CommandContext(t.Context(), "make", "-s", "nfpm")
	tools.Dir = filepath.Join("..", "..")
	nfpm := must.Value(tools.Output())(t)
	r := release{
		root: filepath.Join("..", ".."), version: "v1.2.3-rc.1", time: time.Unix(1_700_000_000, 0).UTC(),
		nfpm: strings.TrimSpace(string(nfpm)), maintainer: "Ann <ann@rejoin.example>", url: "https://example.org/you/rejoin",
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "built")
	must.NoError(t, r.build(t.Context(), programs[0], program, "linux", runtime.GOARCH))
	data, err := os.ReadFile(program)
	must.NoError(t, err)
	files := []file{{"rejoin", data, 0o755}}
	for _, name := range []string{"README.md", "CHANGELOG.md", "LICENSE", "LICENSES-OF-OTHERS", "sbom/rejoin.cdx.json"} {
		files = append(files, file{name, []byte("the " + name), 0o644})
	}
	var debs [2][]byte
	for i := range debs {
		debs[i], err = r.debian(t.Context(), runtime.GOARCH, files)
		must.NoError(t, err)
	}
	if !bytes.Equal(debs[0], debs[1]) {
		t.Error("a second build has other bytes")
	}

	root := unpackDebian(t, debs[0], dir)
	control := text(t, filepath.Join(root, "DEBIAN", "control"))
	for _, line := range []string{"Package: rejoin", "Version: 1.2.3~rc.1", "Architecture: " + runtime.GOARCH, "Maintainer: Ann <ann@rejoin.example>", "Homepage: https://example.org/you/rejoin", "Recommends: ca-certificates"} {
		if !strings.Contains(control, line+"\n") {
			t.Errorf("there is no %q in\n%s", line, control)
		}
	}
	if conffiles := text(t, filepath.Join(root, "DEBIAN", "conffiles")); conffiles != "/etc/default/rejoin\n" {
		t.Errorf("the conffiles are %q", conffiles)
	}
	// Values such as REJOIN_UPSTREAM_HEADER may be secret; systemd reads them as root.
	if info, err := os.Stat(filepath.Join(root, "etc", "default", "rejoin")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the settings are %v, %v", info, err)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", filepath.Join(root, "DEBIAN", script)).CombinedOutput(); err != nil { //nolint:gosec // of ours
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	for _, name := range []string{"bash-completion/completions/rejoin", "zsh/vendor-completions/_rejoin", "fish/vendor_completions.d/rejoin.fish", "doc/rejoin/copyright"} {
		text(t, root+"/usr/share/"+name)
	}
	checkUnit(t, root)
}

// fakeSystemctl keeps two files: the link of an enabled service, and one that exists while it runs.
const fakeSystemctl = `#!/bin/sh
enabled=ROOT/etc/systemd/system/multi-user.target.wants/rejoin.service active=ROOT/active
case "$*" in
daemon-reload) ;;
"enable --now rejoin.service") touch $enabled $active ;;
"enable rejoin.service") touch $enabled ;;
"disable --now rejoin.service") rm -f $enabled $active ;;
"is-enabled --quiet rejoin.service") test -e $enabled ;;
"stop rejoin.service") rm -f $active ;;
"restart rejoin.service") touch $active ;;
"try-restart rejoin.service") ;;
*) echo "unknown: $*"; exit 9 ;;
esac
`

// It is not parallel, nor are its parts: a script that the fork of another test has open cannot run (ETXTBSY).
func TestDebian_ServiceState(t *testing.T) {
	// dpkg passes the version before to an installation after a removal too.
	const install, upgrade, remove, purge = "postinst configure", "postinst configure 1.0", "prerm remove", "postrm purge"
	// In the folder of an image that is built, systemd does not run.
	const offline = "rmdir run/systemd/system"
	const enabledLink = "etc/systemd/system/multi-user.target.wants/rejoin.service"
	for name, c := range map[string]struct {
		steps           []string
		enabled, active bool
	}{
		"installed":             {[]string{install}, true, true},
		"upgraded":              {[]string{install, "prerm upgrade 1.1", "postrm upgrade 1.1", upgrade}, true, true},
		"disabled and upgraded": {[]string{install, "systemctl disable --now rejoin.service", upgrade}, false, false},
		"removed":               {[]string{install, remove, "postrm remove"}, true, false},
		"installed again":       {[]string{install, remove, "postrm remove", upgrade}, true, true},
		"purged":                {[]string{install, remove, "postrm remove", purge}, false, false},
		"installed in an image": {[]string{offline, install}, true, false},
		"disabled in an image":  {[]string{offline, install, "rm " + enabledLink, upgrade}, false, false},
		"purged in an image":    {[]string{offline, install, remove, "postrm remove", purge}, false, false},
		"installed after purge": {[]string{install, remove, "postrm remove", purge, install}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			link := filepath.Join(root, enabledLink)
			for _, folder := range []string{filepath.Dir(link), filepath.Join(root, "run", "systemd", "system")} {
				must.NoError(t, os.MkdirAll(folder, 0o700))
			}
			scripts := map[string]string{"systemctl": strings.ReplaceAll(fakeSystemctl, "ROOT", root)}
			for _, name := range []string{"postinst", "prerm", "postrm"} {
				script := text(t, filepath.Join("..", "debian", name))
				scripts[name] = regexp.MustCompile(` /(run|var|etc)/`).ReplaceAllString(script, " "+root+"/$1/")
			}
			for name, script := range scripts {
				must.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(script), 0o700)) //nolint:gosec // to be run
			}
			for _, step := range c.steps {
				cmd := exec.CommandContext(t.Context(), "sh", "-c", step) //nolint:gosec // of the table
				cmd.Dir = root
				cmd.Env = []string{"PATH=" + root + ":" + os.Getenv("PATH")}
				if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
					t.Fatalf("%s: %v\n%s", step, err, out)
				}
			}
			_, enabled := os.Stat(link)
			_, active := os.Stat(filepath.Join(root, "active"))
			if (enabled == nil) != c.enabled || (active == nil) != c.active {
				t.Errorf("enabled: %v, active: %v", enabled, active)
			}
		})
	}
}

// checkUnit starts the program as its unit does, with each variable of /etc/default/rejoin
// known to it.
func checkUnit(t *testing.T, root string) {
	t.Helper()
	file := root + "/usr/lib/systemd/system/rejoin.service"
	unit := text(t, file)
	start := regexp.MustCompile(`(?m)^ExecStart=(.+)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts nothing")
	}
	words := strings.Fields(strings.ReplaceAll(start[1], "/var/lib/rejoin", filepath.Join(t.TempDir(), "rejoin")))
	program := filepath.Join(root, words[0])

	help := must.Value(exec.CommandContext(t.Context(), program, "serve", "--help").Output())(t) //nolint:gosec // just built
	for _, name := range regexp.MustCompile(`REJOIN_[A-Z_]+`).FindAllString(text(t, root+"/etc/default/rejoin"), -1) {
		if !bytes.Contains(help, []byte("$"+name+")")) {
			t.Errorf("/etc/default/rejoin has %s, which is no variable of the program", name)
		}
	}

	// Node begins with a system call that @system-service lacks, pkey_alloc, and does without.
	if !strings.Contains(unit, "\nSystemCallErrorNumber=EPERM\n") {
		t.Error("what the filter refuses a process of --upstream-command ends it")
	}

	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		// It looks for the program in the system's folders.
		local := filepath.Join(t.TempDir(), "rejoin.service")
		must.NoError(t, os.WriteFile(local, []byte(strings.ReplaceAll(unit, words[0], program)), 0o600))
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", local).CombinedOutput(); err != nil || len(out) > 0 { //nolint:gosec // of the system
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
		// Of 100; systemd calls 20 and less OK.
		if out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", local).CombinedOutput(); err != nil { //nolint:gosec // of the system
			t.Errorf("systemd-analyze security: %v\n%s", err, out)
		}
	}

	// The addresses of this machine may be taken.
	cmd := exec.CommandContext(t.Context(), program, words[1:]...) //nolint:gosec // just built
	cmd.Env = []string{"REJOIN_LOG_FORMAT=json"}
	for _, of := range []string{"ADMIN", "EDGE", "INGEST", "JANITOR", "NATS"} {
		cmd.Env = append(cmd.Env, "REJOIN_"+of+"_ADDR=127.0.0.1:0")
	}
	stdout := must.Value(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	must.NoError(t, cmd.Start())
	var log []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		log = append(log, lines.Text())
		if strings.Contains(lines.Text(), `"msg":"edge open"`) {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(strings.Join(log, ""), `"stopping"`) {
		t.Errorf("it ends with %v:\n%s", err, strings.Join(log, "\n"))
	}
}

// unpackDebian returns the folder with a package's files, and its control files in DEBIAN. A
// package is an ar archive, whose members begin with a header of 60 bytes each.
func unpackDebian(t *testing.T, deb []byte, dir string) string {
	t.Helper()
	root := filepath.Join(dir, "root")
	const magic, headerSize = "!<arch>\n", 60
	rest, ok := bytes.CutPrefix(deb, []byte(magic))
	if !ok {
		t.Fatal("it is no ar archive")
	}
	for len(rest) >= headerSize {
		name := strings.TrimRight(string(rest[:16]), " /")
		size := must.Value(strconv.Atoi(strings.TrimSpace(string(rest[48:58]))))(t)
		member := rest[headerSize : headerSize+size]
		rest = rest[headerSize+size+size%2:]
		switch name {
		case "control.tar.gz":
			unpack(t, member, filepath.Join(root, "DEBIAN"))
		case "data.tar.gz":
			unpack(t, member, root)
		}
	}
	return root
}

func text(t *testing.T, file string) string {
	t.Helper()
	data := must.Value(os.ReadFile(file))(t)
	return string(data)
}
