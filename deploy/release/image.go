package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonroot is the user of all images, and the group: that of the distroless images.
const nonroot = 65532

// An image is one of deploy/Dockerfile, for all platforms.
type image struct {
	program string
	args    []string // after the program
	health  bool     // the program has --healthcheck
	folders []string // mount points of volumes, which begin as theirs: empty, and nonroot's
}

var images = []image{
	{program: "ingest", health: true},
	{program: "sse-edge", health: true},
	{program: "janitor", health: true},
	{program: "bridge", health: true},
	{program: "credentials", args: []string{"/keys"}, folders: []string{
		"keys/", "keys/nats/", "keys/ingest/", "keys/sse-edge/", "keys/janitor/", "keys/bridge/",
		"keys/outside/", "keys/proxy/", "log/", "log-2/", "log-3/",
	}},
}

// index returns an image for the platforms, of which archives maps each (linux/amd64) to the
// files of its archive.
func (r release) index(i image, archives map[string][]file) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range r.platforms { // in order, for equal bytes
		files, ok := archives[platform]
		if !ok {
			continue
		}
		img, err := r.image(i, platform, files)
		if err != nil {
			return nil, err
		}
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: ordinary{img}, Descriptor: v1.Descriptor{Platform: p}})
	}
	annotated, ok := mutate.Annotations(index, r.labels(i)).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("an annotated index is none any more")
	}
	return annotated, nil
}

// ordinary is an image whose descriptor in an index has no artifactType: an image is no other kind of
// artifact, and skopeo 1.9 (Debian 12) does not copy an index with unknown fields.
type ordinary struct{ v1.Image }

// ArtifactType returns "".
func (ordinary) ArtifactType() (string, error) { return "", nil }

// tag returns the reference of an image in its registry.
func (r release) tag(i image) (name.Tag, error) {
	return name.NewTag(r.registry + "/" + i.program + ":" + strings.TrimPrefix(r.version, "v"))
}

// A tagged index is an image for all platforms, with its reference.
type tagged struct {
	ref   name.Tag
	index v1.ImageIndex
}

// publishImages publishes an OCI archive of each image, and images.txt with a reference that pins
// it. It returns the images, for a push.
func (r release) publishImages(archives map[string][]file, publish func(name string, data []byte) error) (all []tagged, err error) {
	var pinned strings.Builder
	for _, i := range r.images {
		ref, err := r.tag(i)
		if err != nil {
			return nil, err
		}
		index, err := r.index(i, archives)
		if err != nil {
			return nil, fmt.Errorf("the image %s: %w", ref, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return nil, err
		}
		data, err := r.ociArchive(index, ref)
		if err != nil {
			return nil, err
		}
		if err := publish(fmt.Sprintf("rejoin-%s_%s.oci.tar", i.program, ref.TagStr()), data); err != nil {
			return nil, err
		}
		fmt.Fprintf(&pinned, "%s@%s\n", ref, digest)
		all = append(all, tagged{ref, index})
	}
	return all, publish("images.txt", []byte(pinned.String()))
}

// push writes images to their registry, as the user of docker login.
func push(ctx context.Context, images []tagged) error {
	for _, i := range images {
		if err := remote.WriteIndex(i.ref, i.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", i.ref, err)
		}
	}
	return nil
}

// labels returns the labels of index, image and container.
func (r release) labels(i image) map[string]string {
	const prefix = "org.opencontainers.image."
	labels := map[string]string{
		prefix + "title":    "Rejoin " + i.program,
		prefix + "licenses": "Apache-2.0",
		prefix + "version":  r.version,
		prefix + "created":  r.time.Format(time.RFC3339),
	}
	if r.url != "" {
		labels[prefix+"source"] = r.url
	}
	return labels
}

// image returns the image of one platform: a layer that all programs share, and one of the
// program.
func (r release) image(i image, platform string, files []file) (v1.Image, error) {
	goos, arch, _ := strings.Cut(platform, "/")
	config := v1.Config{
		User:       fmt.Sprintf("%d:%d", nonroot, nonroot),
		WorkingDir: "/",
		Entrypoint: append([]string{"/" + i.program}, i.args...),
		Labels:     r.labels(i),
	}
	if i.health {
		// OCI's format has none. Docker reads this one, as its own builds write it.
		config.Healthcheck = &v1.HealthConfig{
			Test:     []string{"CMD", "/" + i.program, "--healthcheck"},
			Interval: 2 * time.Second, Timeout: 5 * time.Second, StartPeriod: time.Minute,
		}
	}
	created := v1.Time{Time: r.time}
	img, err := mutate.ConfigFile(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		&v1.ConfigFile{OS: goos, Architecture: arch, Created: created, Config: config, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return nil, err
	}

	base := folders("etc/", "etc/ssl/", "etc/ssl/certs/")
	base = append(base, file{"etc/ssl/certs/ca-certificates.crt", authorities(), 0o644})
	program := folders("sbom/")
	for _, f := range files {
		switch f.path {
		case "LICENSE", "LICENSES-OF-OTHERS":
			base = append(base, f)
		case i.program, "sbom/" + i.program + ".cdx.json":
			program = append(program, f)
		}
	}
	layers := []struct {
		of    string
		owner int
		files []file
	}{{"CA certificates, licenses", 0, base}, {i.program, 0, program}, {"mount points", nonroot, folders(i.folders...)}}
	for _, l := range layers {
		if len(l.files) == 0 {
			continue
		}
		var b bytes.Buffer
		if err := pack(&b, r.time, l.owner, l.files); err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "make release", Comment: l.of}})
		if err != nil {
			return nil, err
		}
	}
	return img, nil
}

func folders(paths ...string) (files []file) {
	for _, path := range paths {
		files = append(files, file{path, nil, 0o755})
	}
	return files
}

// authorities returns the CA certificates that Mozilla trusts without a condition, in the version
// that go.mod pins: those of the building machine would change the digest.
func authorities() []byte {
	var b bytes.Buffer
	b.WriteString("# Mozilla's CA certificates, as in golang.org/x/crypto/x509roots/fallback.\n")
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // PEM has no place for the date after which it is distrusted
		}
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer's Write never fails
	}
	return b.Bytes()
}

// dockerName returns the name of an image in full, as Docker and containerd store it: they know
// Docker Hub as docker.io, go-containerregistry as the host that serves it.
func dockerName(ref name.Tag) string {
	if hub, ok := strings.CutPrefix(ref.Name(), name.DefaultRegistry+"/"); ok {
		return "docker.io/" + hub
	}
	return ref.Name()
}

// ociArchive returns an index as a tar of an OCI image layout, under the name that ref has.
func (r release) ociArchive(index v1.ImageIndex, ref name.Tag) (data []byte, err error) {
	tmp, err := os.MkdirTemp("", "rejoin-image-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	written, err := layout.Write(tmp, empty.Index)
	if err != nil {
		return nil, err
	}
	err = written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          dockerName(ref), // docker load, podman
		"org.opencontainers.image.ref.name": ref.TagStr(),    // skopeo
	}))
	if err != nil {
		return nil, err
	}
	var files []file
	err = filepath.WalkDir(tmp, func(path string, d os.DirEntry, err error) error {
		relative, _ := filepath.Rel(tmp, path)
		switch {
		case err != nil || relative == ".":
			return err
		case d.IsDir():
			files = append(files, folders(filepath.ToSlash(relative)+"/")...)
			return nil
		}
		data, err := os.ReadFile(path) //nolint:gosec // written above
		files = append(files, file{filepath.ToSlash(relative), data, 0o644})
		return err
	})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = pack(&b, r.time, 0, files)
	return b.Bytes(), err
}
