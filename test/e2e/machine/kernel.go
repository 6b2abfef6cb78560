package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kernelPackage is Debian's kernel for virtual machines; it depends on the package of the current version.
const kernelPackage = "linux-image-cloud-amd64"

// moduleOrder is what drives a virtio network card, in the order in which it can be loaded.
var moduleOrder = []string{
	"virtio_ring", "virtio", "failover", "net_failover", "virtio_pci_legacy_dev", "virtio_pci_modern_dev",
	"virtio_pci", "virtio_net",
}

// Kernel is a kernel that is not installed, only unpacked.
type Kernel struct {
	Version string
	Image   string   // file
	Modules []string // files, in the order in which they are loaded
}

// FetchKernel has apt fetch Debian's cloud kernel, and unpacks what of it a machine boots into dir. What is there
// already is used.
func FetchKernel(ctx context.Context, dir string, logf func(string, ...any)) (Kernel, error) {
	if kernel, err := openKernel(dir); err == nil {
		return kernel, nil
	}
	logf("fetching the package of %s (27 MB, unpacked in build/cache, not installed): the machines boot it",
		kernelPackage)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Kernel{}, fmt.Errorf("failed to make cache: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "kernel-*")
	if err != nil {
		return Kernel{}, fmt.Errorf("failed to make cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := download(ctx, work); err != nil {
		// The lists of packages may be missing or out of date.
		if _, updateErr := command(ctx, work, "apt-get", "update", "-qq"); updateErr != nil {
			return Kernel{}, errors.Join(err, updateErr)
		}
		if err := download(ctx, work); err != nil {
			return Kernel{}, err
		}
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return Kernel{}, err
	}
	if len(debs) != 1 {
		return Kernel{}, fmt.Errorf("failed to fetch kernel: %d packages came", len(debs))
	}
	if _, err := command(ctx, work, "dpkg-deb", "-x", debs[0], "unpacked"); err != nil {
		return Kernel{}, err
	}
	if err := pick(filepath.Join(work, "unpacked"), filepath.Join(work, "kernel")); err != nil {
		return Kernel{}, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return Kernel{}, err
	}
	if err := os.Rename(filepath.Join(work, "kernel"), dir); err != nil {
		return Kernel{}, fmt.Errorf("failed to keep kernel: %w", err)
	}
	return openKernel(dir)
}

// openKernel finds what pick left.
func openKernel(dir string) (Kernel, error) {
	version, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		return Kernel{}, err
	}
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return Kernel{}, err
	}
	kernel := Kernel{Version: strings.TrimSpace(string(version)), Image: filepath.Join(dir, "vmlinuz")}
	for name := range strings.FieldsSeq(string(order)) {
		kernel.Modules = append(kernel.Modules, filepath.Join(dir, name))
	}
	for _, path := range append(kernel.Modules, kernel.Image) {
		if _, err := os.Stat(path); err != nil {
			return Kernel{}, err
		}
	}
	return kernel, nil
}

// download fetches the package that kernelPackage depends on.
func download(ctx context.Context, dir string) error {
	said, err := command(ctx, dir, "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return err
	}
	for line := range strings.Lines(said) {
		kind, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if kind == "Depends" && strings.HasPrefix(name, "linux-image-") {
			// Root's apt fetches as the user _apt, which cannot write here.
			_, err := command(ctx, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name)
			return err
		}
	}
	return fmt.Errorf("failed to find the kernel that %s depends on: apt-cache says %q", kernelPackage, said)
}

// pick copies the kernel and its modules out of an unpacked package.
func pick(unpacked, dir string) error {
	images, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-*"))
	if err != nil {
		return err
	}
	if len(images) != 1 {
		return fmt.Errorf("failed to find kernel in its package: it has %d", len(images))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Rename(images[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	found := map[string]string{}
	builtIn := ""
	err = filepath.WalkDir(unpacked, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := strings.CutSuffix(entry.Name(), ".ko"); ok {
			found[strings.ReplaceAll(name, "-", "_")] = path
		}
		if entry.Name() == "modules.builtin" {
			text, err := os.ReadFile(path)
			builtIn = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to search kernel's modules: %w", err)
	}
	var order []string
	for _, name := range moduleOrder {
		if strings.Contains(builtIn, "/"+name+".ko") {
			continue
		}
		path, ok := found[name]
		if !ok {
			return fmt.Errorf("failed to find module %s in the kernel's package", name)
		}
		if err := os.Rename(path, filepath.Join(dir, name+".ko")); err != nil {
			return err
		}
		order = append(order, name+".ko")
	}
	if err := os.WriteFile(filepath.Join(dir, "order"), []byte(strings.Join(order, "\n")), 0o644); err != nil {
		return err
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return os.WriteFile(filepath.Join(dir, "version"), []byte(version+"\n"), 0o644)
}

// command runs a program and returns what it said.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LC_ALL=") }),
		"LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	said, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("failed to run %s %s: %w: %s", name, strings.Join(args, " "), err, exit.Stderr)
		}
		return "", fmt.Errorf("failed to run %s: %w", name, err)
	}
	return string(said), nil
}
