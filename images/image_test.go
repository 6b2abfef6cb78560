package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	spdxjson "github.com/spdx/tools-golang/json"
)

// module writes a root module with one small program.
func module(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/tinkerbell/stack\n\ngo 1.26\n")
	write("pkg/daemon/program.go", "package daemon\n\nvar version, commit string\n\nfunc Build() string { return version + \" \" + commit }\n")
	write("cmd/hello/main.go", `package main

import (
	"os"

	"github.com/tinkerbell/stack/pkg/daemon"
)

func main() { os.Stdout.WriteString("hello " + daemon.Build()) }
`)
	return root
}

func made(t *testing.T, args ...string) string {
	t.Helper()
	out := t.TempDir()
	args = append([]string{
		"-root", module(t), "-out", out, "-programs", "hello",
		"-version", "v1.2.3", "-revision", "abc", "-epoch", "1700000000",
	}, args...)
	if err := run(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	return out
}

// unpack extracts an OCI archive.
func unpack(t *testing.T, file string) layout.Path {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	directory := t.TempDir()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return layout.Path(directory)
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(directory, filepath.Clean("/"+header.Name))
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoBuildsAreOne(t *testing.T) {
	first, second := made(t), made(t) // in different directories
	for _, name := range []string{"hello.tar", "hello.spdx.json"} {
		a, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds of the same source", name)
		}
	}
}

func TestProgramSaysVersionAndCommit(t *testing.T) {
	o := options{root: module(t), version: "v1.2.3", revision: "abc"}
	built, err := o.build(t.TempDir(), "hello", "linux/"+runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), built.binary).CombinedOutput()
	if err != nil || string(out) != "hello v1.2.3 abc" {
		t.Errorf("it says %q, %v", out, err)
	}
}

func TestArchive(t *testing.T) {
	index, err := unpack(t, filepath.Join(made(t), "hello.tar")).ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 {
		t.Fatalf("%d names in the archive, want 1", len(top.Manifests))
	}
	if got, want := top.Manifests[0].Annotations["io.containerd.image.name"],
		"localhost/tinkerbell/stack/hello:v1.2.3"; got != want {
		t.Errorf("name %q, want %q", got, want)
	}
	inner, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, descriptor := range manifest.Manifests {
		platforms = append(platforms, descriptor.Platform.String())
		image, err := inner.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image)
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, platforms); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
}

func checkImage(t *testing.T, image v1.Image) {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{
		User: "65532:65532", Entrypoint: []string{"/hello"}, WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "hello",
			"org.opencontainers.image.version":  "v1.2.3",
			"org.opencontainers.image.revision": "abc",
			"org.opencontainers.image.created":  "2023-11-14T22:13:20Z",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/tinkerbell/stack",
		},
	}
	if diff := cmp.Diff(want, file.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers and error %v, want 1 layer", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	r := tar.NewReader(content)
	header, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if header.Name != "hello" || header.Mode != 0o555 || header.Uid != 0 ||
		!header.ModTime.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("file %+v", header)
	}
	header, err = r.Next()
	if err != nil || header.Name != "etc/ssl/certs/ca-certificates.crt" {
		t.Fatalf("no certificates: %+v, %v", header, err)
	}
	pem, err := io.ReadAll(r)
	if err != nil || !x509.NewCertPool().AppendCertsFromPEM(pem) {
		t.Errorf("certificates that cannot be read: %v", err)
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("a third file, or %v", err)
	}
}

func TestSBOMNamesEveryBinary(t *testing.T) {
	f, err := os.Open(filepath.Join(made(t), "hello.spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	document, err := spdxjson.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range document.Packages {
		names = append(names, string(p.PackageSPDXIdentifier))
	}
	got := strings.Join(names, " ")
	for _, want := range []string{"Package-hello-linux-amd64", "Package-hello-linux-arm64", "Package-stdlib-1"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if !strings.HasPrefix(document.DocumentNamespace, "https://github.com/tinkerbell/stack/sbom/hello/") {
		t.Errorf("namespace %q", document.DocumentNamespace)
	}
}

func TestWrongUse(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing to build": {nil, "no -programs"},
		"platform": {
			[]string{"-programs", "hello", "-platforms", "arm64"}, `platform "arm64" is not os/architecture`,
		},
		"no such program": {[]string{"-programs", "bye"}, "failed to build bye for linux/amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(append([]string{"-root", module(t), "-out", t.TempDir()}, test.args...), io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
