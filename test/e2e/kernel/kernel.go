// Package kernel has kernels of Debian that are not installed, only unpacked, and makes what they boot: an initramfs.
package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Package is a package of Debian that depends on the current kernel of a series.
type Package struct {
	Name string
	// Release is the release of Debian that has the package, where it is not the one of this machine.
	Release string
	// Arch is Debian's name of the architecture, where it is not this machine's.
	Arch string
	// Modules are loaded, after those that they depend on.
	Modules []string
	// Whole has [Unpack] unpack what the package depends on, too, and so on.
	Whole bool
}

// Machine is the kernel of virtual machines with a virtio network card.
var Machine = Package{Name: "linux-image-cloud-amd64", Arch: "amd64", Modules: []string{"virtio_pci", "virtio_net"}}

// Kernel is a kernel that is not installed, only unpacked.
type Kernel struct {
	Version string
	Image   string   // file
	Modules []string // files, in the order in which they are loaded
}

// Cache is the directory of kernels that outlives a clone: one for each package and its list of modules.
func Cache(p Package) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("failed to find the user's cache: %w", err)
	}
	key := sha256.Sum256([]byte(strings.Join(p.Modules, " ")))
	name := strings.Trim(p.Release+"-"+p.Name, "-") + fmt.Sprintf("-%x", key[:4])
	if p.Whole {
		name += "-whole"
	}
	return filepath.Join(dir, "tinkerbell-stack", "kernels", name), nil
}

// Fetch has apt fetch a kernel, and unpacks what of it a machine boots into dir. What is there already is used.
func Fetch(ctx context.Context, dir string, p Package, logf func(string, ...any)) (kernel Kernel, err error) {
	err = once(dir, func() error {
		kernel, err = open(dir)
		return err
	}, func(work, made string) error {
		logf("fetching the package of %s (some 30 MB, unpacked in %s, not installed)", p.Name, dir)
		unpacked := filepath.Join(work, "unpacked")
		if err := unpack(ctx, work, unpacked, p, downloadDependency); err != nil {
			return err
		}
		return pick(ctx, unpacked, made, p.Modules)
	})
	return kernel, err
}

// Unpack has apt fetch a package of Debian that is not installed, and unpacks it into the user's cache. What is there
// already is used. It returns the directory.
func Unpack(ctx context.Context, p Package, logf func(string, ...any)) (string, error) {
	dir, err := Cache(p)
	if err != nil {
		return "", err
	}
	return dir, once(dir, func() error {
		_, err := os.Stat(dir)
		return err
	}, func(work, made string) error {
		logf("fetching the package %s (unpacked in %s, not installed)", p.Name, dir)
		if p.Whole {
			return unpack(ctx, work, made, p, downloadWhole)
		}
		return unpack(ctx, work, made, p, download)
	})
}

// once makes a directory, whole or not at all, unless it is there.
func once(dir string, find func() error, fill func(work, made string) error) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("failed to make cache: %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open lock of cache: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("failed to lock cache: %w", err)
	}
	if find() == nil {
		return nil
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "kernel-*")
	if err != nil {
		return fmt.Errorf("failed to make cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	made := filepath.Join(work, "made")
	if err := fill(work, made); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(made, dir)); err != nil {
		return fmt.Errorf("failed to keep what was unpacked: %w", err)
	}
	return find()
}

// open finds what pick left.
func open(dir string) (Kernel, error) {
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

// pick moves the kernel and the modules out of an unpacked package.
func pick(ctx context.Context, unpacked, dir string, names []string) error {
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
	modules, err := findModules(unpacked)
	if err != nil {
		return err
	}
	order, err := modules.take(ctx, dir, names, nil)
	if err != nil {
		return err
	}
	if err := os.Rename(images[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "order"), []byte(strings.Join(order, "\n")), 0o644); err != nil {
		return err
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return os.WriteFile(filepath.Join(dir, "version"), []byte(version+"\n"), 0o644)
}
