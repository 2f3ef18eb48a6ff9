// Command release builds what is published: for each platform an archive of the programs
// with their licenses and an SBOM (CycloneDX) for each of them, and SHA256SUMS. The same
// sources, version, time and Go release give the same bytes, wherever and whenever it
// runs.
//
//	go run ./deploy/release -version v1.2.3 -time "$(git log -1 --format=%ct)" -out dist
//
// It runs at the root of the repository. What the folder held before is removed.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// A release is what is built, and how.
type release struct {
	root      string    // of the repository
	version   string    // what --version of the programs says
	time      time.Time // of everything that has one
	platforms []string  // such as linux/amd64
	programs  []program
}

// A program is a main package, below the folder of its module.
type program struct{ module, pkg string }

func (p program) name() string { return filepath.Base(p.pkg) }

var programs = []program{
	{"standalone", "./cmd/rejoin"},
	{"services/ingest", "./cmd/ingest"},
	{"services/sse-edge", "./cmd/sse-edge"},
	{"services/janitor", "./cmd/janitor"},
	{"services/bridge", "./cmd/bridge"},
}

// Windows is not among them: edge and bridge need Unix sockets and signals.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"

func main() {
	version := flag.String("version", "dev", "version of the programs")
	seconds := flag.Int64("time", 0, "`time` of all files, in seconds since 1970")
	out := flag.String("out", "dist", "`folder` for the archives")
	only := flag.String("platforms", platforms, "what to build for")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := release{".", *version, time.Unix(*seconds, 0).UTC(), strings.Split(*only, ","), programs}
	if err := r.write(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

// write makes the archives of all platforms, and their checksums.
func (r release) write(ctx context.Context, dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	var sums strings.Builder
	for _, platform := range r.platforms {
		goos, arch, ok := strings.Cut(platform, "/")
		if !ok {
			return fmt.Errorf("%q is no platform such as linux/amd64", platform)
		}
		name := fmt.Sprintf("rejoin_%s_%s_%s", strings.TrimPrefix(r.version, "v"), goos, arch)
		files, err := r.files(ctx, goos, arch)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		data, err := archive(name, r.time, files)
		if err != nil {
			return err
		}
		name += ".tar.gz"
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil { //nolint:gosec // it is for everybody
			return err
		}
		line := fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name)
		fmt.Print(line)
		sums.WriteString(line)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644) //nolint:gosec // it is for everybody
}
