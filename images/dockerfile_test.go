package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// builder is a buildah with a store of its own.
type builder struct{ store, run string }

func (b builder) do(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"--root", b.store, "--runroot", b.run, "--storage-driver", "vfs"}, args...)
	cmd := exec.CommandContext(t.Context(), "buildah", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("failed to run buildah %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// golang makes an image of the name that the Dockerfile builds in. It has a shell and nothing of the network: toolchain
// and modules are this machine's, mounted.
func (b builder) golang(t *testing.T, name string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox: scripts/deps test installs it")
	}
	libraries, err := exec.CommandContext(t.Context(), "ldd", busybox).Output()
	if err != nil {
		t.Skipf("needs ldd for busybox: %v", err)
	}
	root := t.TempDir()
	files := map[string]string{"/bin/sh": busybox, "/" + rootsFile: ""}
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1) {
		files[library] = library
	}
	for inside, outside := range files {
		content := roots()
		if outside != "" {
			if content, err = os.ReadFile(outside); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(root, inside)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o777); err != nil {
		t.Fatal(err)
	}
	container := b.do(t, "from", "scratch")
	b.do(t, "copy", "--quiet", container, root, "/")
	b.do(t, "config", "--env", "PATH=/usr/local/go/bin:/bin", "--env", "GOPATH=/go", "--env", "GOPROXY=off",
		"--env", "GOTOOLCHAIN=local", "--env", "GOCACHE=/cache", container)
	b.do(t, "commit", "--quiet", "--rm", container, "localhost/"+name)
}

// TestDockerfile builds every program's image by images/Dockerfile, and runs what is in it.
func TestDockerfile(t *testing.T) {
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("needs buildah: scripts/deps test installs it")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: buildah changes root")
	}
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	base := regexp.MustCompile(`(?m)^FROM --platform=\$BUILDPLATFORM (golang:\S+) AS build$`).FindSubmatch(text)
	if base == nil {
		t.Fatal("no stage is built from golang")
	}
	b := builder{store: t.TempDir(), run: t.TempDir()}
	b.golang(t, string(base[1]))
	download := exec.CommandContext(t.Context(), "go", "mod", "download")
	download.Dir = ".."
	if out, err := download.CombinedOutput(); err != nil {
		t.Fatalf("failed to download modules: %v\n%s", err, out)
	}
	programs, err := filepath.Glob("../cmd/*")
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	for _, program := range programs {
		program = filepath.Base(program)
		t.Run(program, func(t *testing.T) {
			b.do(t, "bud", "--quiet", "--layers", "--isolation", "chroot", "--pull-never", "--build-arg", "VERSION=v1.2.3",
				"--build-arg", "REVISION=abc",
				"--volume", goEnv(t, "GOROOT")+":/usr/local/go:ro",
				"--volume", goEnv(t, "GOMODCACHE")+":/go/pkg/mod:ro",
				"--volume", goEnv(t, "GOCACHE")+":/cache",
				"--file", "Dockerfile", "--target", program, "--tag", program, "..")
			b.check(t, program)
		})
	}
}

// check compares an image with what "make images" puts into one.
func (b builder) check(t *testing.T, program string) {
	t.Helper()
	var inspected struct{ OCIv1 v1.ConfigFile }
	if err := json.Unmarshal([]byte(b.do(t, "inspect", "--type", "image", program)), &inspected); err != nil {
		t.Fatal(err)
	}
	got := inspected.OCIv1
	if got.OS != "linux" || got.Architecture != runtime.GOARCH {
		t.Errorf("platform %s/%s", got.OS, got.Architecture)
	}
	if got.Config.User != user || !cmp.Equal(got.Config.Entrypoint, []string{"/" + program}) {
		t.Errorf("user %q and entrypoint %q", got.Config.User, got.Config.Entrypoint)
	}
	labels := map[string]string{"title": program, "version": "v1.2.3", "licenses": "Apache-2.0"}
	for name, want := range labels {
		if label := got.Config.Labels["org.opencontainers.image."+name]; label != want {
			t.Errorf("label %s is %q, want %q", name, label, want)
		}
	}
	container := b.do(t, "from", "--pull-never", program)
	defer b.do(t, "rm", container)
	root := b.do(t, "mount", container)
	defer b.do(t, "unmount", container)
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			files = append(files, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{program, rootsFile}
	slices.Sort(want)
	slices.Sort(files)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, program), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v1.2.3 (commit abc,") {
		t.Errorf("--version is %q and %v", out, err)
	}
}
