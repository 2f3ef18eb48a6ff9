package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rejoin/shared/must"
)

// markdown lists all documents of the repository.
func markdown(t *testing.T) []string {
	t.Helper()
	return repositoryFiles(t, "*.md")
}

// repositoryFiles lists files of the repository whose names match a pattern.
func repositoryFiles(t *testing.T, pattern string) []string {
	t.Helper()
	out := must.Value(exec.CommandContext(t.Context(), "git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern).Output())(t)
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(files) < 20 {
		t.Fatalf("there are only %q", files)
	}
	return files
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingPattern = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchors   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	testFunc       = regexp.MustCompile(`(?m)^func (?:Test|Fuzz|Benchmark)(\w+)\(`)
	namedTest      = regexp.MustCompile(`\b(?:Test|Fuzz)([A-Z]\w+)`)
	shownBy        = regexp.MustCompile(`(?m)\|([^|\n]*)\|$`) // the last column of a table
	camelCase      = regexp.MustCompile(`\b[A-Z]\w*[A-Z_]\w*`)
	code           = regexp.MustCompile("(?ms)^```.*?\n```$|`[^`\n]*`")
)

// anchors returns the link targets of a document's headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range headingPattern.FindAllStringSubmatch(text, -1) {
		heading := notInAnchors.ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(heading, " ", "-")] = true
	}
	return all
}

func TestDocument_LinksExist(t *testing.T) {
	t.Parallel()
	links := 0
	for _, file := range markdown(t) {
		text := must.Value(os.ReadFile(filepath.Join("..", file)))(t)
		for _, m := range linkPattern.FindAllSubmatch(code.ReplaceAll(text, nil), -1) {
			target := string(m[1])
			if strings.Contains(target, "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(target, "#")
			to := filepath.Join("..", filepath.Dir(file), path)
			if path == "" {
				to = filepath.Join("..", file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", file, target)
				continue
			}
			if anchor == "" {
				continue
			}
			there := must.Value(os.ReadFile(to))(t)
			if !anchors(string(there))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", file, target)
			}
		}
	}
	if links < 50 {
		t.Errorf("there are only %d links", links)
	}
}

// A test that a document names exists, or some whose names begin so.
func TestDocument_NamedTestsExist(t *testing.T) {
	t.Parallel()
	var tests []string // without Test, in their order
	for _, file := range repositoryFiles(t, "*_test.go") {
		source := must.Value(os.ReadFile(filepath.Join("..", file)))(t)
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			tests = append(tests, string(m[1]))
		}
	}
	slices.Sort(tests)
	exists := func(name string) bool {
		i, _ := slices.BinarySearch(tests, name)
		return i < len(tests) && strings.HasPrefix(tests[i], name)
	}
	named := 0
	for _, file := range markdown(t) {
		text := must.Value(os.ReadFile(filepath.Join("..", file)))(t)
		var names []string
		for _, m := range namedTest.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		if file == "docs/security.md" {
			_, table, _ := strings.Cut(string(text), "| shown by |\n")
			table, _, _ = strings.Cut(table, "\n\n")
			for _, m := range shownBy.FindAllStringSubmatch(table, -1) {
				names = append(names, camelCase.FindAllString(m[1], -1)...)
			}
		}
		for _, name := range names {
			named++
			if name != "Thing_Condition" && !exists(strings.TrimPrefix(strings.TrimPrefix(name, "Test"), "Fuzz")) {
				t.Errorf("%s names the test %s, which is not there", file, name)
			}
		}
	}
	if named < 80 {
		t.Errorf("documents name only %d tests", named)
	}
}

// The commands in the documents are valid bash.
func TestDocument_CommandsAreBash(t *testing.T) {
	t.Parallel()
	commands := 0
	for _, file := range markdown(t) {
		_, blocks := document(t, filepath.Join("..", file))
		for _, b := range blocks {
			if b.lang != "sh" && b.lang != "bash" {
				continue
			}
			commands++
			cmd := exec.CommandContext(t.Context(), "bash", "-n")
			cmd.Stdin = strings.NewReader(b.text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s in\n%s", file, err, out, b.text)
			}
		}
	}
	if commands < 20 {
		t.Errorf("there are only %d commands", commands)
	}
}

// buildElsewhere builds a program in a module of its own, with the commands that a document gives
// for that, and returns its go.mod.
func buildElsewhere(t *testing.T, program, page string) []byte {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	shared := must.Value(filepath.Abs("../shared"))(t)
	commands := strings.ReplaceAll(snippet(t, page, "text", "go mod edit"), "../rejoin/shared", shared)
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", "go mod init another.example/program\n"+commands+"go build .\n")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return must.Value(os.ReadFile(filepath.Join(dir, "go.mod")))(t)
}

func TestDocument_EventStoreFromAnotherRepository(t *testing.T) {
	t.Parallel()
	const page = "../docs/mcp.md"
	buildElsewhere(t, snippet(t, page, "go", "package main"), page)
}

// A program in another repository, whose go.mod has the path of the clone, may use the Go
// client, as docs/publishing.md describes.
func TestDocument_GoClientFromAnotherRepository(t *testing.T) {
	t.Parallel()
	program := must.Value(os.ReadFile("../examples/go/publish/main.go"))(t)
	mod := buildElsewhere(t, string(program), "../docs/publishing.md")
	// The document names its two dependencies.
	if n := bytes.Count(mod, []byte("// indirect")); n != 2 || !bytes.Contains(mod, []byte("github.com/go-json-experiment/json ")) || !bytes.Contains(mod, []byte("golang.org/x/sync ")) {
		t.Errorf("it needs\n%s", mod)
	}
}
