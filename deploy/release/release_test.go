package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"rejoin/shared/must"
)

func TestRelease_ReproducibleAndRuns(t *testing.T) {
	t.Parallel()
	// The smallest program that has modules of others; the others are built the same way.
	r := release{
		root: "../..", version: "v1.2.3", time: time.Unix(1_700_000_000, 0).UTC(),
		platforms: []string{runtime.GOOS + "/" + runtime.GOARCH}, programs: programs[4:5], url: "https://example.org/you/rejoin",
	}
	dir := t.TempDir()
	var first []byte
	name := fmt.Sprintf("rejoin_1.2.3_%s_%s", runtime.GOOS, runtime.GOARCH)
	for _, out := range []string{"one", "two"} {
		must.NoError(t, r.write(t.Context(), filepath.Join(dir, out)))
		data := must.Value(os.ReadFile(filepath.Join(dir, out, name+".tar.gz")))(t)
		sums, err := os.ReadFile(filepath.Join(dir, out, "SHA256SUMS"))
		if want := fmt.Sprintf("%x  %s.tar.gz\n", sha256.Sum256(data), name); err != nil || !strings.HasPrefix(string(sums), want) || !strings.HasSuffix(string(sums), "  rejoin-client-1.2.3.tgz\n") {
			t.Errorf("the sums are %s, %v, want %s", sums, err, want)
		}
		if first == nil {
			first = data
		} else if !bytes.Equal(first, data) {
			t.Error("a second build has other bytes")
		}
	}

	files := unpack(t, first, dir)
	for _, file := range []string{"LICENSE", "README.md", "CHANGELOG.md", "LICENSES-OF-OTHERS", "bridge", "sbom/bridge.cdx.json"} {
		if files[name+"/"+file] == nil {
			t.Errorf("there is no %s", file)
		}
	}
	if line := "https://example.org/you/rejoin/releases/download/v1.2.3/rejoin_1.2.3_linux_amd64.tar.gz"; !bytes.Contains(files[name+"/README.md"], []byte(line)) || bytes.Contains(files[name+"/README.md"], []byte("publisher.example")) {
		t.Errorf("the README has no %s, or a placeholder", line)
	}
	for _, file := range []string{"README.md", "CHANGELOG.md"} {
		text := files[name+"/"+file]
		if !bytes.Contains(text, []byte("](https://example.org/you/rejoin/blob/v1.2.3/docs/")) {
			t.Errorf("%s has no link to a document", file)
		}
		if m := regexp.MustCompile(`(\]\(|src=")[a-z]+/[^)"]*`).Find(text); m != nil {
			t.Errorf("%s leads to a file that the archive does not have: %s", file, m)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, name, "bridge"), "--version").Output() //nolint:gosec // just built
	if err != nil || !strings.HasPrefix(string(out), "bridge v1.2.3 ") {
		t.Errorf("the version is %q, %v", out, err)
	}

	bom := new(cdx.BOM)
	must.NoError(t, cdx.NewBOMDecoder(bytes.NewReader(files[name+"/sbom/bridge.cdx.json"]), cdx.BOMFileFormatJSON).Decode(bom))
	sum := fmt.Sprintf("%x", sha256.Sum256(files[name+"/bridge"]))
	if self := bom.Metadata.Component; self.Version != "v1.2.3" || (*self.Hashes)[0].Value != sum {
		t.Errorf("the SBOM is about %+v", self)
	}
	licenses := string(files[name+"/LICENSES-OF-OTHERS"])
	named := map[string]bool{}
	for _, c := range *bom.Components {
		named[c.Name] = true
		if at := c.Name + "@" + c.Version; c.Name != "std" && !strings.Contains(licenses, "======== "+at+": ") {
			t.Errorf("there is no license of %s", at)
		}
	}
	if !named["std"] || !named["github.com/nats-io/nats.go"] || named["rejoin/shared"] {
		t.Errorf("the SBOM has %v", named)
	}
}

// A version or a registry that names no image ends the release before it has removed or built anything.
func TestRelease_NamesNoImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := filepath.Join(dir, "SHA256SUMS")
	must.NoError(t, os.WriteFile(before, []byte("the release before\n"), 0o600))
	for _, r := range []release{
		{version: ""},
		{version: "v1.2.3+1"},
		{version: "shared/v1.2.3"},
		{version: "-v1.2.3"},
		{version: "v1.2.3 rc"},
		{version: "v" + strings.Repeat("1", 129)},
		{version: "v1.2.3", registry: "registry.example/Rejoin"},
	} {
		r.root, r.images = "../..", images
		if err := r.write(t.Context(), dir); err == nil {
			t.Errorf("%q in %q: there is no error", r.version, r.registry)
		}
		if text(t, before) != "the release before\n" {
			t.Errorf("%q in %q: the folder is another one", r.version, r.registry)
		}
	}
}

// unpack writes an archive's files below dir, and returns them.
func unpack(t *testing.T, data []byte, dir string) map[string][]byte {
	t.Helper()
	z := must.Value(gzip.NewReader(bytes.NewReader(data)))(t)
	return unpackTar(t, z, dir)
}

func unpackTar(t *testing.T, data io.Reader, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(data); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must.NoError(t, err)
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if h.Uid != 0 || h.Uname != "" && h.Uname != "root" || !h.ModTime.Equal(time.Unix(1_700_000_000, 0)) {
			t.Errorf("%s is of %d %q, %s", h.Name, h.Uid, h.Uname, h.ModTime)
		}
		text := must.Value(io.ReadAll(r))(t)
		files[h.Name] = text
		path := filepath.Join(dir, filepath.FromSlash(h.Name))                                                              //nolint:gosec // names of our own
		must.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, os.FileMode(h.Mode)))) //nolint:gosec // small
	}
}
