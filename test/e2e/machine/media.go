package machine

import (
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// Names of the files in the directory that stack-proxy serves. Smee's script asks for the first two, the installer for
// the agent where the kernel's command line says so.
const (
	KernelFile    = "vmlinuz-x86_64"
	InitramfsFile = "initramfs-x86_64"
	ArtifactFile  = "debian.raw"
	AgentFile     = "tink-agent"
)

// artifactSize is that of the image that a machine "installs".
const artifactSize = 8 << 20

// Media is what machines download.
type Media struct {
	Dir            string // with the three files
	Kernel         string // version, empty where there is none to boot
	InitramfsSize  int64
	ArtifactSHA512 string
}

// PrepareMedia fills dir with what machines boot and install: the kernel, an initramfs with the installer, and an
// artifact. Without a kernel to boot a file of its size takes the place, which is all that a Go machine needs.
func PrepareMedia(ctx context.Context, e2eDir, dir string, boots *kernel.Kernel) (Media, error) {
	media := Media{Dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return media, fmt.Errorf("failed to make directory for media: %w", err)
	}
	if boots == nil {
		if _, err := writeNoise(filepath.Join(dir, KernelFile), artifactSize); err != nil {
			return media, err
		}
		boots = &kernel.Kernel{}
	} else if err := replace(filepath.Join(dir, KernelFile), func(w io.Writer) error {
		return copyTo(w, boots.Image)
	}); err != nil {
		return media, fmt.Errorf("failed to place kernel: %w", err)
	}
	media.Kernel = boots.Version
	work, err := os.MkdirTemp("", "installer-*")
	if err != nil {
		return media, fmt.Errorf("failed to build installer: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := program.For(ctx, "amd64", e2eDir, work, "./installer/init"); err != nil {
		return media, fmt.Errorf("failed to build installer: %w", err)
	}
	init := filepath.Join(work, "init")
	initramfs := filepath.Join(dir, InitramfsFile)
	if err := replace(initramfs, func(w io.Writer) error {
		packer, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		if err := kernel.WriteInitramfs(packer, init, boots.Modules); err != nil {
			return err
		}
		return packer.Close()
	}); err != nil {
		return media, fmt.Errorf("failed to write initramfs: %w", err)
	}
	info, err := os.Stat(initramfs)
	if err != nil {
		return media, err
	}
	media.InitramfsSize = info.Size()
	media.ArtifactSHA512, err = writeNoise(filepath.Join(dir, ArtifactFile), artifactSize)
	return media, err
}

// AddAgent adds Tinkerbell's agent.
func (m Media) AddAgent(path string) error {
	agent := filepath.Join(m.Dir, AgentFile)
	if err := replace(agent, func(w io.Writer) error { return copyTo(w, path) }); err != nil {
		return fmt.Errorf("failed to place the agent: %w", err)
	}
	return nil
}

func copyTo(w io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	_, err = io.Copy(w, file)
	return err
}

// writeNoise writes bytes that do not compress, the same each time, and returns their SHA-512.
func writeNoise(path string, size int64) (string, error) {
	hash := sha512.New()
	err := replace(path, func(w io.Writer) error {
		noise := rand.NewChaCha8([32]byte([]byte("the image that a machine streams")))
		_, err := io.CopyN(io.MultiWriter(w, hash), noise, size)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("failed to write artifact: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// replace writes a file aside and renames it: another lab may be serving it.
func replace(path string, write func(io.Writer) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	defer func() { _ = file.Close() }()
	if err := write(file); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
