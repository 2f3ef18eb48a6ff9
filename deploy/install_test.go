package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/must"
)

// makeTarget runs a target of the repository's Makefile.
func makeTarget(t *testing.T, args ...string) {
	t.Helper()
	// As of an administrator with a strict umask.
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `umask 077; exec make "$@"`, "make"}, args...)...) //nolint:gosec // of a test
	cmd.Dir = ".."
	// As root in the clone of another user, where git refuses to answer.
	git := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(git, "git"), []byte("#!/bin/sh\nexit 128\n"), 0o700)) //nolint:gosec // to be run
	cmd.Env = append(os.Environ(), "PATH="+git+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestInstall_PrefixAndDestdir(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	makeTarget(t, "install", "DESTDIR="+root, "PREFIX=/opt/re join", "VERSION=v1.2.3")
	prefix := filepath.Join(root, "opt", "re join")
	program := filepath.Join(prefix, "bin", "rejoin")

	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || !strings.HasPrefix(string(out), "rejoin v1.2.3 ") {
		t.Errorf("the version is %q, %v", out, err)
	}
	for name, want := range map[string]string{
		"share/bash-completion/completions/rejoin":    "complete -o default",
		"share/zsh/site-functions/_rejoin":            "#compdef rejoin",
		"share/fish/vendor_completions.d/rejoin.fish": "complete -c rejoin",
	} {
		if text, err := os.ReadFile(filepath.Join(prefix, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v", name, want, err)
		}
	}
	// All users run the program, and their shells read the scripts.
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o644)
		if d.IsDir() || path == program {
			want = 0o755
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has the mode %o, want %o", path, got, want)
		}
		return nil
	})
	must.NoError(t, err)
	installed, err := filepath.Glob(filepath.Join(prefix, "bin", "*"))
	if want := []string{program}; err != nil || !slices.Equal(installed, want) {
		t.Errorf("it installs %v, want %v", installed, want)
	}
}

// A release has a tag for each module, at the same commit; that of the programs begins with v.
func TestMake_VersionIsTheTagOfThePrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := must.Value(filepath.Abs(".."))(t)
	text := "include " + filepath.Join(root, "Makefile") + "\nversion: ; @echo '$(VERSION)'\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "Makefile"), []byte(text), 0o600))
	script := `git init -q && git -c user.name=Ann -c user.email=ann@rejoin.example commit -q --allow-empty -m begin
		for tag in v0.1.0 shared/v0.1.0 shared/mcpstore/v0.1.0; do git tag $tag; done; make -s version`
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.Output(); err != nil || string(out) != "v0.1.0\n" {
		t.Errorf("the version is %q, %v", out, err)
	}
}

// The folder of a clone may have a space in its name.
func TestMake_ToolsOfAFolderWithASpace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a clone")
	text := must.Value(os.ReadFile(filepath.Join("..", "Makefile")))(t)
	// It installs nothing, and prints the folder that it would use.
	const fakeGo = "#!/bin/sh\n[ \"$1\" != install ] || echo \"$GOBIN\"\n"
	for name, data := range map[string]string{"Makefile": string(text), "bin/go": fakeGo} {
		path := filepath.Join(dir, name)
		must.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(data), 0o700))) //nolint:gosec // to be run
	}
	cmd := exec.CommandContext(t.Context(), "make", "-s", "nfpm")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 2 || !strings.HasPrefix(lines[0], dir+"/.tools/") || lines[1] != lines[0]+"/nfpm" {
		t.Errorf("it prints %q, %v", out, err)
	}
}
