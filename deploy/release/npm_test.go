package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rejoin/shared/must"
)

// npm installs the package, and Node imports it.
func TestRelease_NPMPackage(t *testing.T) {
	t.Parallel()
	r := release{root: filepath.Join("..", ".."), version: "v1.2.3", time: time.Unix(1_700_000_000, 0).UTC(), url: "https://example.org/you/rejoin"}
	data := must.Value(r.npm())(t)
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "rejoin-client-1.2.3.tgz"), data, 0o600))
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("npm", "install", "--offline", "--no-audit", "--no-fund", "./rejoin-client-1.2.3.tgz")
	if got := run("node", "--input-type=module", "-e", "import { subscribe, publish } from 'rejoin-client'; console.log(typeof subscribe, typeof publish)"); got != "function function" {
		t.Errorf("it exports %s", got)
	}
	installed := filepath.Join(dir, "node_modules", "rejoin-client")
	text := must.Value(os.ReadFile(filepath.Join(installed, "package.json")))(t)
	var p struct {
		Name, Version, License, Types, Homepage string
		Repository                              struct{ Type, URL, Directory string }
		Files                                   []string
		Exports                                 map[string]map[string]string
	}
	must.NoError(t, json.Unmarshal(text, &p))
	if p.Name != "rejoin-client" || p.Version != "1.2.3" || p.License != "Apache-2.0" || p.Homepage != r.url || p.Repository.URL != "git+https://example.org/you/rejoin.git" {
		t.Errorf("package.json has %+v", p)
	}
	for _, name := range append(p.Files, "README.md", "LICENSE", p.Types, p.Exports["."]["types"], p.Exports["."]["default"]) {
		if info, err := os.Stat(filepath.Join(installed, name)); err != nil || info.IsDir() {
			t.Errorf("there is no %q: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(installed, "tests")); err == nil {
		t.Error("it has the tests")
	}
}

func TestRelease_VersionsOfPackages(t *testing.T) {
	t.Parallel()
	for version, want := range map[string][2]string{
		"v1.2.3":            {"1.2.3", "1.2.3"},
		"v1.2.3-rc.1":       {"1.2.3-rc.1", "1.2.3~rc.1"},
		"v1.2.3-dirty":      {"1.2.3-dirty", "1.2.3+dirty"},
		"4e2bcf7-dirty":     {"0.0.0-dev-4e2bcf7-dirty", "0.0.0~dev-4e2bcf7+dirty"},
		"v1.2.3-5-g4e2bcf7": {"1.2.3-5-g4e2bcf7", "1.2.3+5.g4e2bcf7"},

		"v1.2.3-rc.1-5-g4e2bcf7-dirty": {"1.2.3-rc.1-5-g4e2bcf7-dirty", "1.2.3~rc.1+5.g4e2bcf7.dirty"},
	} {
		if got := [2]string{semantic(version), debianVersion(version)}; got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
}
