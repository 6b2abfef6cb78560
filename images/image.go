package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who a program is where nobody says otherwise: "nonroot", as distroless images have it.
const user = "65532:65532"

// build is a program made for one platform.
type build struct {
	platform string
	binary   string
	image    v1.Image
}

// build compiles a program and puts it into an image from scratch.
func (o options) build(work, program, platform string) (build, error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return build{}, fmt.Errorf("platform %q is not os/architecture", platform)
	}
	b := build{platform: platform, binary: filepath.Join(work, program+"-"+goos+"-"+goarch)}
	const daemon = " -X github.com/tinkerbell/stack/pkg/daemon."
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", //nolint:noctx // ends with us
		"-s -w -buildid="+daemon+"version="+o.version+daemon+"commit="+o.revision,
		"-o", b.binary, "./cmd/"+program)
	cmd.Dir = o.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch,
		"GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0") // what would otherwise depend on who builds
	if out, err := cmd.CombinedOutput(); err != nil {
		return build{}, fmt.Errorf("failed to build %s for %s: %w\n%s", program, platform, err, out)
	}
	content, err := layer(program, b.binary, o.created)
	if err != nil {
		return build{}, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	one, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return build{}, err
	}
	b.image, err = mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:     one,
		MediaType: types.OCILayer,
		History:   v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "make images"},
	})
	if err != nil {
		return build{}, err
	}
	config, err := b.image.ConfigFile()
	if err != nil {
		return build{}, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = goos, goarch
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		User: user, Entrypoint: []string{"/" + program}, WorkingDir: "/", Labels: o.labels(program),
	}
	b.image, err = mutate.ConfigFile(mutate.ConfigMediaType(b.image, types.OCIConfigJSON), config)
	return b, err
}

// labels are those of the OCI image specification, as labels and, on the index, as annotations.
func (o options) labels(program string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    program,
		"org.opencontainers.image.version":  o.version,
		"org.opencontainers.image.revision": o.revision,
		"org.opencontainers.image.created":  o.created.Format(time.RFC3339),
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   "https://github.com/tinkerbell/stack",
	}
}

// rootsFile is where Go looks for the certificates of authorities on Linux.
const rootsFile = "etc/ssl/certs/ca-certificates.crt"

// layer is a tar with the program and, for its HTTPS, the authorities that Mozilla trusts: nothing else that could
// differ. The authorities come from a pinned module and not from the machine that builds.
func layer(program, binary string, created time.Time) ([]byte, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, file := range []struct {
		name    string
		mode    int64
		content []byte
	}{{program, 0o555, content}, {rootsFile, 0o444, roots()}} {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: file.name, Size: int64(len(file.content)), Mode: file.mode, ModTime: created,
			Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(file.content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// roots are the authorities in PEM. Those that Mozilla trusts only for some names are left out.
func roots() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return out.Bytes()
}

// writeArchive writes <program>.tar and gives the index's digest.
func (o options) writeArchive(name, program string, builds []build) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range builds {
		goos, goarch, _ := strings.Cut(b.platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        b.image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: goos, Architecture: goarch}},
		})
	}
	annotated, ok := mutate.Annotations(index, o.labels(program)).(v1.ImageIndex)
	if !ok {
		return v1.Hash{}, fmt.Errorf("failed to annotate the index of %s", program)
	}
	directory, err := os.MkdirTemp("", "layout")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(directory)
	path, err := layout.Write(directory, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return v1.Hash{}, fmt.Errorf("failed to write the layout of %s: %w", program, err)
	}
	// containerd reads the first of these, skopeo and buildah the second.
	err = path.AppendIndex(annotated, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": o.version,
	}))
	if err != nil {
		return v1.Hash{}, fmt.Errorf("failed to write the layout of %s: %w", program, err)
	}
	if err := archive(directory, o.path(program+".tar"), o.created); err != nil {
		return v1.Hash{}, fmt.Errorf("failed to write the archive of %s: %w", program, err)
	}
	return annotated.Digest()
}

// archive writes a directory as a tar in the order of its names.
func archive(directory, file string, created time.Time) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == directory {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: created})
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644, ModTime: created}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}
