package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// debian returns a Debian package of the standalone program, with files of its platform's archive.
func (r release) debian(ctx context.Context, arch string, files []file) (deb []byte, err error) {
	tmp, err := os.MkdirTemp("", "rejoin-debian-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	for _, name := range []string{
		"deploy/systemd/rejoin.service", "deploy/systemd/rejoin.default", "deploy/debian/postinst", "deploy/debian/prerm", "deploy/debian/postrm",
		"standalone/command/completion.bash", "standalone/command/completion.zsh", "standalone/command/completion.fish",
	} {
		data, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{filepath.Base(name), data, 0o644})
	}
	for _, f := range files {
		path := filepath.Join(tmp, f.path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, f.data, 0o600)); err != nil {
			return nil, err
		}
	}
	config, err := filepath.Abs(filepath.Join(r.root, "deploy", "debian", "nfpm.yaml"))
	if err != nil {
		return nil, err
	}
	out := filepath.Join(tmp, "rejoin.deb")
	cmd := exec.CommandContext(ctx, r.nfpm, "package", "--config", config, "--packager", "deb", "--target", out) //nolint:gosec // a flag
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "ARCH="+arch, "VERSION="+debianVersion(r.version), "MAINTAINER="+r.maintainer, "HOMEPAGE="+r.url, fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix()))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("nfpm: %w\n%s", err, out)
	}
	return os.ReadFile(out)
}

var semanticVersion = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?)$`)

// semantic returns a version as npm takes it. Any other version comes before all releases.
func semantic(version string) string {
	if m := semanticVersion.FindStringSubmatch(version); m != nil {
		return m[1]
	}
	return "0.0.0-dev-" + version
}

// sinceTag matches the suffix that git describe adds to a tag: the commits since, and changes without one.
var sinceTag = regexp.MustCompile(`(-[0-9]+-g[0-9a-f]+)?(-dirty)?$`)

// debianVersion returns a version as dpkg takes it, for which a tilde comes before the release and a
// plus after it.
func debianVersion(version string) string {
	version = semantic(version)
	since := sinceTag.FindString(version)
	tag := strings.Replace(strings.TrimSuffix(version, since), "-", "~", 1)
	return tag + strings.Replace(strings.ReplaceAll(since, "-", "."), ".", "+", 1)
}
