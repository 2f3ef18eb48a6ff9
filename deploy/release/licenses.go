package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// modules are the modules of others in a release, as path@version.
type modules map[string]bool

func (all modules) add(info *buildinfo.BuildInfo) {
	for _, m := range others(info) {
		all[m.Path+"@"+m.Version] = true
	}
}

// licenses returns the texts that must accompany the programs, of Go itself first. A
// module without one is an error.
func (all modules) licenses(ctx context.Context) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("What the programs hold of others, and under which conditions.\n")
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	if err := add(&b, "Go "+runtime.Version(), strings.TrimSpace(string(root))); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		dir, err := sources(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := add(&b, name, dir); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// add writes the license and notices in a folder.
func add(b *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		upper := strings.ToUpper(e.Name())
		license := strings.HasPrefix(upper, "LICEN") || strings.HasPrefix(upper, "COPYING")
		if e.IsDir() || !license && !strings.HasPrefix(upper, "NOTICE") || strings.HasSuffix(upper, ".GO") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = found || license
		fmt.Fprintf(b, "\n======== %s: %s\n\n%s\n", name, e.Name(), bytes.TrimSpace(text))
	}
	if !found {
		return fmt.Errorf("%s has no license", name)
	}
	return nil
}

// sources returns the folder with the sources of a module, which the build has fetched.
func sources(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module) //nolint:gosec // what the linker noted
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output() // with an Error of its own in it when it fails
	var got struct{ Dir, Error string }
	if err := cmp.Or(json.Unmarshal(out, &got), err); err != nil {
		return "", fmt.Errorf("the sources of %s: %w %s", module, err, got.Error)
	}
	return got.Dir, nil
}
