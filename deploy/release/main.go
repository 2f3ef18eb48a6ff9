// Command release builds the files of a release: for each platform an archive of the programs
// with their licenses and an SBOM (CycloneDX) for each of them, for Linux a Debian package of
// the standalone program and container images (OCI archives) of the services, the npm package of
// the JavaScript client, and SHA256SUMS. The same sources, version, time and Go release give the
// same bytes, wherever and whenever it runs.
//
//	go run ./deploy/release -version v1.2.3 -time "$(git log -1 --format=%ct)" -out dist
//
// It runs at the root of the repository. The earlier contents of the folder are removed.
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
	"regexp"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "dev", "version of the programs")
	seconds := flag.Int64("time", 0, "`time` of all files, in seconds since 1970")
	out := flag.String("out", "dist", "`folder` for the archives")
	only := flag.String("platforms", platforms, "what to build for")
	nfpm := flag.String("nfpm", "", "`program` nfpm, for Debian packages; empty: none are built")
	maintainer := flag.String("maintainer", "The publisher of this build <root@localhost>", "`name and address` in the Debian packages")
	address := flag.String("url", "", "`address` of the repository, in the packages; empty: none")
	registry := flag.String("registry", "rejoin", "`address` of images, before their names")
	push := flag.Bool("push", false, "push the images to the registry, as whom docker login has logged in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := release{
		root: ".", version: *version, time: time.Unix(*seconds, 0).UTC(), platforms: strings.Split(*only, ","), programs: programs,
		nfpm: *nfpm, maintainer: *maintainer, url: strings.TrimSuffix(*address, "/"),
		images: images, registry: strings.TrimSuffix(*registry, "/"), push: *push,
	}
	if err := r.write(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to be stopped
	}
}

// An image's tag is the version without its v, and a part of files' names.
var validTag = regexp.MustCompile(`^\w[\w.-]{0,127}$`)

// check finds the errors that would end the release once all programs are built and the old folder is removed.
func (r release) check() error {
	if !validTag.MatchString(strings.TrimPrefix(r.version, "v")) {
		return fmt.Errorf("the version %q cannot be the tag of an image, which has letters, digits, \"_\", \".\" and \"-\" alone", r.version)
	}
	for _, i := range r.images {
		if _, err := r.tag(i); err != nil {
			return err
		}
	}
	return nil
}

// write makes the archives and packages of all platforms, and their checksums.
func (r release) write(ctx context.Context, dir string) error {
	if err := r.check(); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	var sums strings.Builder
	publish := func(name string, data []byte) error {
		line := fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name)
		fmt.Print(line)
		sums.WriteString(line)
		return os.WriteFile(filepath.Join(dir, name), data, 0o644) //nolint:gosec // it is for everybody
	}
	version := strings.TrimPrefix(r.version, "v")
	linux := map[string][]file{}
	for _, platform := range r.platforms {
		goos, arch, ok := strings.Cut(platform, "/")
		if !ok {
			return fmt.Errorf("%q is no platform such as linux/amd64", platform)
		}
		name := fmt.Sprintf("rejoin_%s_%s_%s", version, goos, arch)
		files, err := r.files(ctx, goos, arch)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		data, err := archive(name, r.time, files)
		if err != nil {
			return err
		}
		if err := publish(name+".tar.gz", data); err != nil {
			return err
		}
		if goos != "linux" {
			continue
		}
		linux[platform] = files
		if r.nfpm == "" {
			continue
		}
		if data, err = r.debian(ctx, arch, files); err != nil {
			return fmt.Errorf("the Debian package for %s: %w", arch, err)
		}
		if err := publish(fmt.Sprintf("rejoin_%s_%s.deb", version, arch), data); err != nil {
			return err
		}
	}
	var indexes []tagged
	if len(linux) > 0 {
		var err error
		if indexes, err = r.publishImages(linux, publish); err != nil {
			return err
		}
	}
	data, err := r.npm()
	if err != nil {
		return fmt.Errorf("the npm package: %w", err)
	}
	if err := publish("rejoin-client-"+semantic(r.version)+".tgz", data); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644); err != nil { //nolint:gosec // it is for everybody
		return err
	}
	if !r.push {
		return nil
	}
	// Last, so that a failed push leaves archives that skopeo, say, can push.
	return push(ctx, indexes)
}
