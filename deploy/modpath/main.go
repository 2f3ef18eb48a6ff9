// Command modpath gives the modules of this repository another path, so that the Go tool can
// fetch them from the repository in which they are published: in go.mod files, imports,
// build commands, tests and documents. Everything else called rejoin, such as the program
// and its metrics, keeps its name.
//
//	go run ./deploy/modpath -version v0.1.0 example.org/you/rejoin
//
// It runs at the root of the repository. With -version the modules require each other in that
// version.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	version := flag.String("version", "", "`version` in which the modules require each other, such as v0.1.0; empty: as before")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: modpath [-version VERSION] PATH")
		os.Exit(2)
	}
	changed, err := rewrite(".", flag.Arg(0), *version)
	if err != nil {
		fmt.Fprintln(os.Stderr, "modpath:", err)
		os.Exit(1)
	}
	fmt.Printf("changed %d files\n", changed)
}

var (
	validPath    = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)
	majorVersion = regexp.MustCompile(`/v[0-9]+$`)
	validVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
	moduleLine   = regexp.MustCompile(`(?m)^module (\S+)$`)
)

// rewrite replaces the module path in all files of the tree at root, and returns how many it
// changed.
func rewrite(root, path, version string) (changed int, err error) {
	switch {
	case !validPath.MatchString(path):
		return 0, fmt.Errorf("%q is not a module path such as example.org/you/rejoin; its first part needs a dot", path)
	case majorVersion.MatchString(path):
		return 0, fmt.Errorf("%q ends with a major version, which belongs to each module: example.org/you/rejoin/shared/v2", path)
	case version != "" && !validVersion.MatchString(version):
		return 0, fmt.Errorf("%q is not a version such as v0.1.0", version)
	}
	old, err := modulePath(root)
	if err != nil {
		return 0, err
	}
	files, err := tree(root)
	if err != nil {
		return 0, err
	}
	edits := newEdits(old, path, version, files)
	// The file with the old path comes last, so that a second run completes one that was interrupted.
	files = append(slices.DeleteFunc(files, func(name string) bool { return name == "go.mod" }), "go.mod")
	for _, name := range files {
		file := filepath.Join(root, name)
		data, err := os.ReadFile(file)
		if err != nil {
			return changed, err
		}
		after, err := edits.apply(name, data)
		if err != nil {
			return changed, fmt.Errorf("%s: %w", name, err)
		}
		if bytes.Equal(after, data) {
			continue
		}
		// The mode of a file that exists stays.
		if err := os.WriteFile(file, after, 0o600); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// modulePath returns the path of the module at root.
func modulePath(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	m := moduleLine.FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s has no module line", filepath.Join(root, "go.mod"))
	}
	return string(m[1]), nil
}

// tree returns the regular files below root, without those that are built or fetched.
func tree(root string) (files []string, err error) {
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if entry.IsDir() && (slices.Contains([]string{".git", ".tools", "bin", "data", "dist"}, name) || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if entry.Type().IsRegular() && name != ".git" { // a file in a worktree
			files = append(files, name)
		}
		return nil
	})
	return files, err
}

// edits are the replacements of one run.
type edits struct {
	old, path, version string
	packages, requires *regexp.Regexp
}

// newEdits recognizes a package by the folder that follows the path, so that an image such as
// rejoin/ingest, or the folder of a clone, stays as it is.
func newEdits(old, path, version string, files []string) edits {
	var folders []string
	for _, name := range files {
		folder, rest, below := strings.Cut(filepath.ToSlash(name), "/")
		if below && strings.HasSuffix(rest, ".go") && !slices.Contains(folders, folder) {
			folders = append(folders, regexp.QuoteMeta(folder))
		}
	}
	return edits{
		old, path, version,
		regexp.MustCompile(`(^|[^\w./@-])` + regexp.QuoteMeta(old) + `/(` + strings.Join(folders, "|") + `)\b`),
		regexp.MustCompile(`(?m)(\s` + regexp.QuoteMeta(path) + `/\S+) v\S+`),
	}
}

func (e edits) apply(name string, data []byte) ([]byte, error) {
	after := e.packages.ReplaceAll(data, []byte("${1}"+e.path+"/${2}"))
	switch filepath.Base(name) {
	case "go.mod":
		after = bytes.Replace(after, []byte("module "+e.old+"\n"), []byte("module "+e.path+"\n"), 1)
		if e.version != "" {
			after = e.requires.ReplaceAll(after, []byte("${1} "+e.version))
		}
	case ".golangci.yml":
		after = bytes.Replace(after, []byte("module-path: "+e.old+"\n"), []byte("module-path: "+e.path+"\n"), 1)
	}
	if filepath.Ext(name) == ".go" && !bytes.Equal(after, data) {
		return format.Source(after) // imports are sorted again
	}
	return after, nil
}
