package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"rejoin/shared/must"
)

func TestRelease_Images(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	// The smallest program; the others are built the same way.
	r := release{
		root: "../..", version: "v1.2.3", time: time.Unix(1_700_000_000, 0).UTC(), url: "https://example.org/you/rejoin",
		platforms: []string{"linux/amd64", "linux/arm64"}, programs: programs[5:],
		images: images[4:], registry: strings.TrimPrefix(server.URL, "http://") + "/rejoin", push: true,
	}
	dir := t.TempDir()
	must.NoError(t, r.write(t.Context(), filepath.Join(dir, "one")))
	pinned := text(t, filepath.Join(dir, "one", "images.txt"))
	tag, digest, _ := strings.Cut(strings.TrimSuffix(pinned, "\n"), "@")
	if tag != r.registry+"/credentials:1.2.3" {
		t.Fatalf("images.txt has %q", pinned)
	}

	// The registry does not change the image. A failed push leaves complete files, so that other programs can push
	// them.
	refusing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(refusing.Close)
	elsewhere := r
	elsewhere.registry = strings.TrimPrefix(refusing.URL, "http://") + "/other"
	if err := elsewhere.write(t.Context(), filepath.Join(dir, "two")); err == nil || !strings.Contains(err.Error(), "push ") {
		t.Errorf("a push that is refused ends with %v", err)
	}
	if got, want := text(t, filepath.Join(dir, "two", "images.txt")), elsewhere.registry+"/credentials:1.2.3@"+digest+"\n"; got != want {
		t.Errorf("a second build has %q, want %q", got, want)
	}

	const archived = "rejoin-credentials_1.2.3.oci.tar"
	sums := text(t, filepath.Join(dir, "two", "SHA256SUMS"))
	for _, name := range []string{"rejoin_1.2.3_linux_amd64.tar.gz", archived, "images.txt", "rejoin-client-1.2.3.tgz"} {
		if !strings.Contains(sums, "  "+name+"\n") {
			t.Errorf("the sums have no %s:\n%s", name, sums)
		}
	}
	unpackTar(t, strings.NewReader(text(t, filepath.Join(dir, "one", archived))), filepath.Join(dir, "layout"))
	root := must.Value(layout.ImageIndexFromPath(filepath.Join(dir, "layout")))(t)
	m := must.Value(root.IndexManifest())(t)
	if len(m.Manifests) != 1 || m.Manifests[0].Digest.String() != digest ||
		m.Manifests[0].Annotations["io.containerd.image.name"] != tag || m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3" {
		t.Fatalf("the layout has %+v", m.Manifests)
	}
	fromArchive := must.Value(root.ImageIndex(m.Manifests[0].Digest))(t)
	ref := must.Value(name.NewDigest(r.registry + "/credentials@" + digest))(t)
	fromRegistry := must.Value(remote.Index(ref, remote.WithContext(t.Context())))(t)
	for of, index := range map[string]v1.ImageIndex{"archive": fromArchive, "registry": fromRegistry} {
		if err := validate.Index(index); err != nil {
			t.Errorf("the index of the %s: %v", of, err)
		}
	}
	for i, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		checkImage(t, fromRegistry, r.platforms[i], machine)
	}
}

// Docker looks for rejoin/ingest under the name that it has in full, and finds no other one.
func TestRelease_NamesOfLoadedImages(t *testing.T) {
	t.Parallel()
	for registry, want := range map[string]string{
		"rejoin":                  "docker.io/rejoin/ingest:1.2.3",
		"docker.io/you":           "docker.io/you/ingest:1.2.3",
		"registry.example/rejoin": "registry.example/rejoin/ingest:1.2.3",
		"localhost:5000/rejoin":   "localhost:5000/rejoin/ingest:1.2.3",
	} {
		r := release{version: "v1.2.3", registry: registry}
		ref := must.Value(r.tag(images[0]))(t)
		if got := dockerName(ref); got != want {
			t.Errorf("an image of %s is %q, want %q", registry, got, want)
		}
	}
}

// checkImage checks the image of one platform, of the program credentials.
func checkImage(t *testing.T, index v1.ImageIndex, platform string, machine elf.Machine) {
	t.Helper()
	m := must.Value(index.IndexManifest())(t)
	at := slices.IndexFunc(m.Manifests, func(d v1.Descriptor) bool { return d.Platform.String() == platform })
	if at < 0 || len(m.Manifests) != 2 || m.Manifests[at].ArtifactType != "" {
		t.Fatalf("the index has %+v", m.Manifests)
	}
	img := must.Value(index.Image(m.Manifests[at].Digest))(t)
	file := must.Value(img.ConfigFile())(t)
	config := file.Config
	if config.User != "65532:65532" || !slices.Equal(config.Entrypoint, []string{"/credentials", "/keys"}) || file.OS+"/"+file.Architecture != platform || file.Created.Unix() != 1_700_000_000 {
		t.Errorf("%s: the configuration is %+v", platform, file)
	}
	const prefix = "org.opencontainers.image."
	for label, want := range map[string]string{"version": "v1.2.3", "licenses": "Apache-2.0", "source": "https://example.org/you/rejoin", "created": "2023-11-14T22:13:20Z"} {
		if config.Labels[prefix+label] != want || m.Annotations[prefix+label] != want {
			t.Errorf("%s: %s is %q, of the index %q, want %q", platform, label, config.Labels[prefix+label], m.Annotations[prefix+label], want)
		}
	}

	extracted := mutate.Extract(img)
	defer func() { _ = extracted.Close() }()
	files := map[string][]byte{}
	for r := tar.NewReader(extracted); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.NoError(t, err)
		owner, mode := 0, int64(0o644)
		if regexp.MustCompile(`^(keys|log)`).MatchString(h.Name) {
			owner = nonroot
		}
		if h.Typeflag == tar.TypeDir || h.Name == "credentials" {
			mode = 0o755
		}
		if h.Uid != owner || h.Gid != owner || h.Mode != mode || h.ModTime.Unix() != 1_700_000_000 {
			t.Errorf("%s: %s is %d:%d's, %o, %s", platform, h.Name, h.Uid, h.Gid, h.Mode, h.ModTime)
		}
		files[strings.TrimSuffix(h.Name, "/")], err = io.ReadAll(r)
		must.NoError(t, err)
	}
	for _, path := range []string{"LICENSE", "LICENSES-OF-OTHERS", "sbom/credentials.cdx.json", "keys/nats", "log-3"} {
		if _, ok := files[path]; !ok {
			t.Errorf("%s: there is no /%s", platform, path)
		}
	}
	if !x509.NewCertPool().AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"]) {
		t.Errorf("%s: there are no CA certificates", platform)
	}
	program := must.Value(elf.NewFile(bytes.NewReader(files["credentials"])))(t)
	static := !slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if program.Machine != machine || !static {
		t.Errorf("%s: the program is for %s, static: %t", platform, program.Machine, static)
	}
}

// The images are those that compose builds, but for their base.
func TestRelease_ImagesOfTheDockerfile(t *testing.T) {
	t.Parallel()
	dockerfile := text(t, "../Dockerfile")
	if !strings.Contains(dockerfile, fmt.Sprintf("\nUSER %d:%[1]d\n", nonroot)) {
		t.Error("the Dockerfile has another user")
	}
	var got []image
	for _, target := range regexp.MustCompile(`(?m)^FROM base AS (\S+)\n(?:.+\n)*`).FindAllStringSubmatch(dockerfile, -1) {
		i := image{program: target[1]}
		entrypoint := regexp.MustCompile(`ENTRYPOINT \["/` + i.program + `"(?:, "(.*)")?\]`).FindStringSubmatch(target[0])
		if entrypoint == nil {
			t.Fatalf("%s has no entrypoint", i.program)
		}
		if entrypoint[1] != "" {
			i.args = []string{entrypoint[1]}
		}
		i.health = strings.Contains(target[0], `HEALTHCHECK --interval=2s --timeout=5s --start-period=60s CMD ["/`+i.program+`", "--healthcheck"]`)
		if strings.Contains(target[0], "/folders /") {
			for _, folder := range regexp.MustCompile(`/folders/(\S+)`).FindAllStringSubmatch(dockerfile, -1) {
				if parent, _, ok := strings.Cut(folder[1], "/"); ok && !slices.Contains(i.folders, parent+"/") {
					i.folders = append(i.folders, parent+"/")
				}
				i.folders = append(i.folders, folder[1]+"/")
			}
		}
		got = append(got, i)
	}
	if !reflect.DeepEqual(got, images) {
		t.Errorf("the Dockerfile has\n%+v, make release\n%+v", got, images)
	}
}
