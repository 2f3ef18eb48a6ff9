package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A release holds the sources, the version and the platforms of a build.
type release struct {
	root       string    // of the repository
	version    string    // that --version of the programs prints
	time       time.Time // of everything that has one
	platforms  []string  // such as linux/amd64
	programs   []program
	nfpm       string // the program that builds Debian packages; empty: none are built
	maintainer string // of the Debian package
	url        string // of the repository, for the packages; empty: unknown
	images     []image
	registry   string // before the names of images, such as registry.example/rejoin
	push       bool   // the images to the registry
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
	{"deploy", "./cmd/credentials"},
}

// Windows is not among them: edge and bridge need Unix sockets and signals.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"

// A file of an archive, with its path below the archive's one folder.
type file struct {
	path string
	data []byte
	mode int64
}

// files returns the files for the archive of a platform.
func (r release) files(ctx context.Context, goos, arch string) (files []file, err error) {
	tmp, err := os.MkdirTemp("", "rejoin-release-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return nil, err
		}
		if name == "README.md" {
			data = r.filledIn(data)
		}
		if name != "LICENSE" {
			data = r.linked(data)
		}
		files = append(files, file{name, data, 0o644})
	}
	used := modules{}
	for _, p := range r.programs {
		path := filepath.Join(tmp, p.name())
		if err := r.build(ctx, p, path, goos, arch); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name(), err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, err
		}
		used.add(info)
		bom, err := sbom(p.name(), r.version, r.time, data, info)
		if err != nil {
			return nil, err
		}
		files = append(files, file{p.name(), data, 0o755}, file{"sbom/" + p.name() + ".cdx.json", bom, 0o644})
	}
	licenses, err := used.licenses(ctx)
	if err != nil {
		return nil, err
	}
	return append(files, file{"LICENSES-OF-OTHERS", licenses, 0o644}), nil
}

var (
	relativeLink  = regexp.MustCompile(`\]\(([A-Za-z][\w./-]*(?:#[\w-]+)?)\)`)
	relativeImage = regexp.MustCompile(`src="([A-Za-z][\w./-]*)"`)
)

// linked returns a document with links into the repository at this version in the place of
// relative ones, if there is an address: the archive has none of the files that they lead to.
func (r release) linked(text []byte) []byte {
	if r.url == "" {
		return text
	}
	text = relativeLink.ReplaceAll(text, []byte("]("+r.url+"/blob/"+r.version+"/$1)"))
	return relativeImage.ReplaceAll(text, []byte(`src="`+r.url+"/raw/"+r.version+`/$1"`))
}

var placeholders = regexp.MustCompile(`(?m)^There is no central place for downloads\..*\n\n`)

// filledIn returns the README with the release's version and address in the place of their
// placeholders, if there is an address.
func (r release) filledIn(readme []byte) []byte {
	if r.url == "" {
		return readme
	}
	readme = placeholders.ReplaceAll(readme, nil)
	readme = bytes.ReplaceAll(readme, []byte("https://publisher.example"), []byte(r.url))
	return bytes.ReplaceAll(readme, []byte("VERSION"), []byte(strings.TrimPrefix(r.version, "v")))
}

// build builds a program with the versions that its own module pins, and without data
// that depends on the machine or the state of its repository.
func (r release) build(ctx context.Context, p program, path, goos, arch string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", //nolint:gosec // what main.go lists
		"-ldflags", "-s -w -buildid= -X rejoin/shared/daemon.Version="+r.version, "-o", path, p.pkg)
	cmd.Dir = filepath.Join(r.root, p.module)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch,
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GODEBUG=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
