package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/must"
)

const (
	newPath    = "example.org/you/rejoin"
	newVersion = "v0.1.0"
)

// A program of another repository that uses the packages of docs/publishing.md and docs/mcp.md.
const program = `package main

import (
	"context"
	"fmt"

	"` + newPath + `/shared/client"
	"` + newPath + `/shared/mcpstore"
)

func main() {
	publisher, err := client.NewPublisher(client.PublisherConfig{URL: "http://127.0.0.1:8080"})
	if err != nil {
		panic(err)
	}
	stored, err := publisher.PublishAndWait(context.Background(), client.Message{Session: "demo", Stream: "main", Data: []byte("{}")})
	fmt.Println(stored, err, mcpstore.Config{})
}
`

func TestModpath_BuildsAndIsFetchedElsewhere(t *testing.T) {
	t.Parallel()
	root := copyTree(t, "../..")
	must.Value(rewrite(root, newPath, newVersion))(t)
	// Every import of every module exists, those of tests too.
	if out := run(t, root, nil, "go", "list", "-e", "-test", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", "work"); out != "" {
		t.Errorf("imports of the copy:\n%s", out)
	}
	for _, module := range []string{".", "services/ingest", "services/sse-edge", "services/janitor", "services/bridge", "shared/mcpstore"} {
		out := run(t, filepath.Join(root, module), []string{"GOWORK=off"}, "go", "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")
		if !strings.Contains(out, newPath+"/shared "+newVersion+"\n") {
			t.Errorf("%s requires another version of shared:\n%s", module, out)
		}
	}
	run(t, root, nil, "make", "install", "PREFIX="+root+"/bin", "VERSION=v9.8.7")
	if out := run(t, root, nil, "bin/bin/rejoin", "--version"); !strings.HasPrefix(out, "rejoin v9.8.7 ") {
		t.Errorf("the version is %q", out)
	}

	// As a tag of each module makes them available.
	proxy := t.TempDir()
	publish(t, proxy, root, "shared")
	publish(t, proxy, root, "shared/mcpstore")
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	cache := strings.TrimSpace(run(t, dir, nil, "go", "env", "GOMODCACHE"))
	usual := strings.TrimSpace(run(t, dir, nil, "go", "env", "GOPROXY"))
	env := []string{
		"GOWORK=off", "CGO_ENABLED=0", "GOSUMDB=off", "GOFLAGS=-modcacherw -trimpath -buildvcs=false", "GOMODCACHE=" + t.TempDir(),
		"GOPROXY=file://" + proxy + ",file://" + cache + "/cache/download," + usual,
	}
	run(t, dir, env, "go", "mod", "init", "another.example/program")
	run(t, dir, env, "go", "get", newPath+"/shared@"+newVersion, newPath+"/shared/mcpstore@"+newVersion)
	run(t, dir, env, "go", "build", "-o", "program", ".")
}

func TestModpath_NamesOfOtherThingsStay(t *testing.T) {
	t.Parallel()
	e := newEdits("before", newPath, newVersion, []string{"shared/a.go", "services/ingest/b.go", "docs/c.md"})
	for text, want := range map[string]string{
		`import "before/shared/client"`:                 `import "` + newPath + `/shared/client"`,
		"-X before/shared/daemon.Version=v1":            "-X " + newPath + "/shared/daemon.Version=v1",
		"-replace=before/shared=../before/shared":       "-replace=" + newPath + "/shared=../before/shared",
		"`before/services/ingest`":                      "`" + newPath + "/services/ingest`",
		"before/ingest:v1":                              "before/ingest:v1",
		"https://example.com/before/shared":             "https://example.com/before/shared",
		"application/vnd.before/shared":                 "application/vnd.before/shared",
		"before/sharedness, before_edge_events, before": "before/sharedness, before_edge_events, before",
	} {
		if got, err := e.apply("a.md", []byte(text)); err != nil || string(got) != want {
			t.Errorf("%s became %s, %v", text, got, err)
		}
	}
	mod := "module before\n\nrequire before/shared v0.0.0\n\nreplace before/shared => ./shared\n\nrequire github.com/google/uuid v1.6.0\n"
	want := "module " + newPath + "\n\nrequire " + newPath + "/shared v0.1.0\n\nreplace " + newPath + "/shared => ./shared\n\nrequire github.com/google/uuid v1.6.0\n"
	if got, err := e.apply("go.mod", []byte(mod)); err != nil || string(got) != want {
		t.Errorf("go.mod became\n%s, %v", got, err)
	}
}

// A run that ends in the middle is completed by the next one.
func TestModpath_Interrupted(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const imports = "package %s\n\nimport _ \"before/shared\"\n"
	broken := filepath.Join(root, "shared", "broken.go")
	for name, data := range map[string]string{
		"go.mod":              "module before\n",
		"bench/main.go":       fmt.Sprintf(imports, "main"),
		"shared/broken.go":    fmt.Sprintf(imports, "5"),
		"shared/go.mod":       "module before/shared\n",
		"standalone/proxy.go": fmt.Sprintf(imports, "main"),
	} {
		file := filepath.Join(root, name)
		must.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(data), 0o600)))
	}
	if _, err := rewrite(root, newPath, ""); err == nil {
		t.Fatal("a file that is no Go is rewritten")
	}
	must.NoError(t, os.WriteFile(broken, []byte(fmt.Sprintf(imports, "shared")), 0o600))
	must.Value(rewrite(root, newPath, ""))(t)
	for _, name := range files(t, root) {
		if data, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Contains(data, []byte(newPath)) {
			t.Errorf("%s has %s, %v", name, data, err)
		}
	}
}

func TestModpath_InvalidArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][2]string{{"", ""}, {"rejoin", ""}, {"you/rejoin", ""}, {"example.org", ""}, {"example.org/you/rejoin/v2", ""}, {"example.org/a b", ""}, {newPath, "1.0.0"}} {
		if changed, err := rewrite(t.TempDir(), args[0], args[1]); changed != 0 || err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %d, %v", args, changed, err)
		}
	}
}

func files(t *testing.T, root string) []string {
	t.Helper()
	return must.Value(tree(root))(t)
}

// copyTree copies a tree, without built or fetched files, to a folder of the test's.
func copyTree(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	for _, name := range files(t, from) {
		info := must.Value(os.Stat(filepath.Join(from, name)))(t)
		data := must.Value(os.ReadFile(filepath.Join(from, name)))(t)
		file := filepath.Join(to, name)
		must.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, data, info.Mode().Perm())))
	}
	return to
}

// publish puts a module into the folder of a module proxy, as the Go tool would from a tag.
func publish(t *testing.T, proxy, root, module string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	dir := filepath.Join(root, module)
	names := files(t, dir)
	nested := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return filepath.Base(name) != "go.mod" || name == "go.mod" })
	for _, name := range names {
		if slices.ContainsFunc(nested, func(mod string) bool { return strings.HasPrefix(name, filepath.Dir(mod)+"/") }) {
			continue
		}
		data := must.Value(os.ReadFile(filepath.Join(dir, name)))(t)
		w := must.Value(z.Create(newPath + "/" + module + "@" + newVersion + "/" + filepath.ToSlash(name)))(t)
		must.Value(w.Write(data))(t)
	}
	must.NoError(t, z.Close())
	mod := must.Value(os.ReadFile(filepath.Join(dir, "go.mod")))(t)
	versions := filepath.Join(proxy, newPath, module, "@v")
	must.NoError(t, os.MkdirAll(versions, 0o700))
	for name, data := range map[string][]byte{
		"list": []byte(newVersion + "\n"), newVersion + ".mod": mod, newVersion + ".zip": b.Bytes(),
		newVersion + ".info": []byte(`{"Version":"` + newVersion + `","Time":"2026-01-01T00:00:00Z"}`),
	} {
		must.NoError(t, os.WriteFile(filepath.Join(versions, name), data, 0o600))
	}
}

func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	if strings.Contains(name, "/") {
		cmd.Path = filepath.Join(dir, name)
	}
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}
