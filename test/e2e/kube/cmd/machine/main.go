//go:build linux

// Command machine is a machine with real firmware on the network namespace that it is started in. "machine release"
// makes what it boots, as a release of OS files; "machine boot" switches it on and waits until its installer has
// passed every step and it switched itself off.
package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("machine", flag.ContinueOnError)
	dir := flags.String("dir", "", "`directory` for the release, or for what the firmware says")
	source := flags.String("source", "test/e2e", "`directory` of the module with the installer (release)")
	cache := flags.String("cache", "build/cache", "`directory` where kernels are kept (release)")
	tap := flags.String("tap", "", "network `interface` of its card (boot)")
	mac := flags.String("mac", "", "its card's `address` (boot)")
	firmware := flags.String("firmware", "bios", "bios or uefi (boot)")
	quiet := flags.Duration("quiet", 2*time.Minute, "how long it may print and transfer nothing new (boot)")
	if len(args) == 0 {
		return errors.New("say release or boot, and -dir")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("-dir is missing")
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return fmt.Errorf("failed to make directory: %w", err)
	}
	switch args[0] {
	case "release":
		return release(ctx, *source, *cache, *dir)
	case "boot":
		hardware, err := net.ParseMAC(*mac)
		if err != nil {
			return fmt.Errorf("-mac: %w", err)
		}
		m := lab.Machine{Name: *firmware, MAC: hardware}
		switch *firmware {
		case "bios":
		case "uefi":
			m.Firmware = lab.UEFI
		default:
			return fmt.Errorf("-firmware: %q is neither bios nor uefi", *firmware)
		}
		return boot(ctx, m, *tap, *dir, *quiet)
	}
	return fmt.Errorf("%q is neither release nor boot", args[0])
}

// release writes HookOS' archive as a release has it, an image, and the list of digests. It prints the image's digest.
func release(ctx context.Context, source, cache, dir string) error {
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	boots, err := kernel.Fetch(ctx, filepath.Join(cache, "kernel"), kernel.Machine, say)
	if err != nil {
		return err
	}
	media, err := machine.PrepareMedia(ctx, source, filepath.Join(cache, "media-kube"), &boots)
	if err != nil {
		return err
	}
	const archive = "hook_x86_64.tar.gz"
	if err := pack(filepath.Join(dir, archive), media.Dir, machine.KernelFile, machine.InitramfsFile); err != nil {
		return err
	}
	sum, err := digest(filepath.Join(dir, archive))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "checksum.txt"), []byte(sum+"  "+archive+"\n"), 0o644); err != nil {
		return fmt.Errorf("failed to write list of digests: %w", err)
	}
	image, err := os.ReadFile(filepath.Join(media.Dir, machine.ArtifactFile))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, machine.ArtifactFile), image, 0o644); err != nil {
		return fmt.Errorf("failed to write image: %w", err)
	}
	fmt.Println(media.ArtifactSHA512)
	return nil
}

func pack(to, dir string, names ...string) error {
	file, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("failed to write archive: %w", err)
	}
	defer func() { _ = file.Close() }()
	packer := gzip.NewWriter(file)
	archive := tar.NewWriter(packer)
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("failed to write archive: %w", err)
		}
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(1_700_000_000, 0)}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("failed to write archive: %w", err)
		}
		if _, err := archive.Write(content); err != nil {
			return fmt.Errorf("failed to write archive: %w", err)
		}
	}
	return errors.Join(archive.Close(), packer.Close(), file.Close())
}

func digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("failed to read file for its digest: %w", err)
	}
	defer func() { _ = file.Close() }()
	hash := sha512.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("failed to read file for its digest: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// boot runs the machine. It has passed when each of the installer's steps was reported well, the last being that it
// switches itself off, and it is off. It is given up when nothing has moved for a time: no line that it prints, no byte
// of a transfer.
func boot(ctx context.Context, m lab.Machine, tap, dir string, quiet time.Duration) error {
	args, err := machine.Arguments(m, tap, dir)
	if err != nil {
		return err
	}
	begun := time.Now()
	var mu sync.Mutex
	var passed []string
	var failed error
	console := machine.Console(func(r installer.Report) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("%6.1f s  %-9s %t %s\n", time.Since(begun).Seconds(), r.Step, r.OK, r.Detail)
		if !r.OK {
			failed = fmt.Errorf("%s: %s", r.Step, r.Detail)
		}
		passed = append(passed, r.Step)
	})
	system := filepath.Join(dir, m.Name+"-kernel.log")
	log, err := os.Create(system)
	if err != nil {
		return fmt.Errorf("failed to make log: %w", err)
	}
	defer func() { _ = log.Close() }()
	var online atomic.Bool
	capture := filepath.Join(dir, m.Name+".pcapng")
	sniffer, err := observe.WatchLink(tap, capture, func(observe.Event) { online.Store(true) })
	if err != nil {
		return err
	}
	defer func() { _ = sniffer.Close() }()
	cmd := exec.Command(machine.QEMU, args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(console, log), log
	p, err := process.Start(ctx, cmd, process.Options{Name: "machine"})
	if err != nil {
		return err
	}
	firmware := process.LastLine("the firmware", machine.FirmwareLogIn(dir, m.Name))
	ctx, watch := progress.Begin(ctx, progress.Patience{Quiet: quiet, Waited: p.Starved, Signs: []func() string{
		func() string {
			if online.Load() { // from then on firmware prints the same again and again
				return sniffer.Reached(m.MAC.String())
			}
			return firmware()
		}, process.LastLine("the system", system),
	}})
	defer watch.End()
	select {
	case <-p.Ended():
	case <-ctx.Done():
		p.Kill()
	}
	mu.Lock()
	defer mu.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("the machine did not get further than %v: %w", passed, context.Cause(ctx))
	}
	if err := p.Wait(); err != nil {
		return fmt.Errorf("failed to run machine: %w", err)
	}
	want := []string{
		installer.StepSyslog, installer.StepMetadata, installer.StepGRPC, installer.StepArtifact, installer.StepPowerOff,
	}
	if failed == nil && !slices.Equal(passed, want) {
		failed = fmt.Errorf("the machine went off after the steps [%s]", strings.Join(passed, " "))
	}
	return failed
}
