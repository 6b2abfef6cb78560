// Package hookos makes a machine's operating system installer out of what HookOS is made of: a kernel, Docker, and
// Tinkerbell's agent in a container. It also has the registry that the containers' images come from, and the image of a
// disk that the machine writes and then boots.
package hookos

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// Kernel is that of the machine: with what Docker's overlay and bridge need.
var Kernel = kernel.Package{Name: "linux-image-cloud-amd64", Arch: "amd64", Modules: []string{
	"virtio_pci", "virtio_net", "virtio_blk", "overlay", "veth", "bridge", "br_netfilter",
	"nf_tables", "nft_compat", "nft_chain_nat", "nf_conntrack_netlink",
	"xt_conntrack", "xt_addrtype", "xt_nat", "xt_MASQUERADE",
}}

// programs are those of Debian's packages docker.io, containerd, runc and iptables, and where the machine has them.
var programs = map[string]string{
	"dockerd": "usr/sbin/dockerd", "containerd": "usr/bin/containerd",
	"containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2", "runc": "usr/sbin/runc",
	"xtables-nft-multi": "usr/sbin/iptables",
}

// plugins are what iptables loads while it runs.
const plugins = "/usr/lib/x86_64-linux-gnu/xtables"

// diskSize is enough for FAT32.
const diskSize = 64 << 20

// bootloader is Debian's GRUB, and where firmware looks for one on a disk that it knows nothing of.
const (
	bootloader = "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
	grubConfig = "linux /vmlinuz console=ttyS1 " + machine.KernelArgs + " " + installer.InstalledArg + "\n" +
		"initrd /initrd\nboot\n"
)

// Missing names a program that is not there and that the machine is made of; empty: all are there.
func Missing() string {
	for program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
	}
	if _, err := exec.LookPath("mcopy"); err != nil {
		return "mcopy"
	}
	return ""
}

// Write fills dir with what the machine downloads: kernel and initramfs by the names that Smee's script has, and the
// disk's image, [machine.ArtifactFile].
func Write(ctx context.Context, e2eDir, dir string, logf func(string, ...any)) error {
	cache, err := kernel.Cache(Kernel)
	if err != nil {
		return err
	}
	boots, err := kernel.Fetch(ctx, cache, Kernel, logf)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "hookos-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := program.For(ctx, "amd64", e2eDir, work, "./installer/init"); err != nil {
		return err
	}
	init := filepath.Join(work, "init")
	files, err := files(ctx)
	if err != nil {
		return err
	}
	if err := copyFile(filepath.Join(dir, machine.KernelFile), boots.Image); err != nil {
		return err
	}
	if err := initramfs(filepath.Join(dir, machine.InitramfsFile), init, boots.Modules, files...); err != nil {
		return err
	}
	initrd := filepath.Join(work, "initrd")
	if err := initramfs(initrd, init, nil); err != nil {
		return err
	}
	grub, err := kernel.Unpack(ctx, kernel.Package{Name: "grub-efi-amd64-signed", Arch: "amd64", Release: "trixie"}, logf)
	if err != nil {
		return err
	}
	config := filepath.Join(work, "grub.cfg")
	if err := os.WriteFile(config, []byte(grubConfig), 0o644); err != nil {
		return err
	}
	return image(ctx, filepath.Join(dir, machine.ArtifactFile), [][2]string{
		{filepath.Join(grub, bootloader), "EFI/BOOT/BOOTX64.EFI"}, {config, "EFI/debian/grub.cfg"},
		{boots.Image, "vmlinuz"}, {initrd, "initrd"},
	})
}

// files are the programs with the libraries that they are linked to.
func files(ctx context.Context) ([]kernel.File, error) {
	var all []kernel.File
	add := func(name, from string) {
		if !slices.ContainsFunc(all, func(f kernel.File) bool { return f.Name == name }) {
			all = append(all, kernel.File{Name: name, From: from, Mode: 0o755})
		}
	}
	for program, at := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			return nil, err
		}
		add(at, path)
		said, err := exec.CommandContext(ctx, "ldd", path).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("failed to find the libraries of %s: %w: %s", path, err, said)
		}
		for field := range strings.FieldsSeq(string(said)) {
			if strings.HasPrefix(field, "/") {
				add(strings.TrimPrefix(field, "/"), field)
			}
		}
	}
	matches, err := filepath.Glob(plugins + "/*.so")
	for _, match := range matches {
		add(strings.TrimPrefix(match, "/"), match)
	}
	return all, err
}

func initramfs(path, init string, modules []string, files ...kernel.File) error {
	return create(path, func(w io.Writer) error {
		packer, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedDefault))
		if err != nil {
			return err
		}
		if err := kernel.WriteInitramfs(packer, init, modules, files...); err != nil {
			return err
		}
		return packer.Close()
	})
}

func copyFile(to, from string) error {
	return create(to, func(w io.Writer) error {
		file, err := os.Open(from)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		_, err = io.Copy(w, file)
		return err
	})
}

func create(path string, write func(io.Writer) error) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := write(file); err != nil {
		return fmt.Errorf("failed to write %s: %w", path, err)
	}
	return file.Close()
}

// image makes the image of a disk whose one file system, FAT, holds files.
func image(ctx context.Context, path string, files [][2]string) error {
	if err := create(path, func(w io.Writer) error { return w.(*os.File).Truncate(diskSize) }); err != nil {
		return err
	}
	commands := [][]string{
		{"mformat", "-i", path, "-F", "::"}, {"mmd", "-i", path, "::/EFI", "::/EFI/BOOT", "::/EFI/debian"},
	}
	for _, file := range files {
		commands = append(commands, []string{"mcopy", "-i", path, file[0], "::/" + file[1]})
	}
	for _, command := range commands {
		if said, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("failed to run %s: %w: %s", strings.Join(command, " "), err, said)
		}
	}
	return nil
}
