package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// unpack fetches a package, and unpacks it.
func unpack(
	ctx context.Context, work, unpacked string, p Package,
	download func(ctx context.Context, dir string, options []string, name string) error,
) error {
	options, err := aside(filepath.Join(work, "apt"), p)
	if err != nil {
		return err
	}
	if err := download(ctx, work, options, p.Name); err != nil {
		// The lists of packages may be missing or out of date.
		if _, updateErr := command(ctx, work, "apt-get", append(options, "update", "-qq")...); updateErr != nil {
			return errors.Join(err, updateErr)
		}
		if err := download(ctx, work, options, p.Name); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != 1 && !p.Whole || len(debs) == 0 {
		return fmt.Errorf("failed to fetch %s: %d packages came", p.Name, len(debs))
	}
	for _, deb := range debs {
		if _, err := command(ctx, work, "dpkg-deb", "-x", deb, unpacked); err != nil {
			return err
		}
	}
	return nil
}

// aside are apt's options for another release or architecture than this machine's: lists of packages of its own in a
// directory, from where this machine has its own.
func aside(dir string, p Package) ([]string, error) {
	options := []string{"-o", "APT::Sandbox::User=root"} // root's apt fetches as the user _apt, which cannot write here
	own, err := release("/etc/os-release")
	if err != nil {
		return nil, err
	}
	p.Release, p.Arch = cmp.Or(p.Release, own), cmp.Or(p.Arch, runtime.GOARCH)
	if p.Release == own && p.Arch == runtime.GOARCH {
		return options, nil
	}
	sources := filepath.Join(dir, "sources")
	for _, name := range []string{"sources", "state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	if err := copySources("/etc/apt", sources, own, p.Release); err != nil {
		return nil, err
	}
	return append(options, "-o", "Dir::State="+filepath.Join(dir, "state"), "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache="+filepath.Join(dir, "cache"),
		"-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts="+sources,
		"-o", "APT::Architecture="+p.Arch, "-o", "APT::Architectures="+p.Arch), nil
}

// release reads the codename of Debian's release from a file.
func release(file string) (string, error) {
	about, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("failed to find out this machine's release: %w", err)
	}
	for line := range strings.Lines(string(about)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("failed to find out this machine's release: %s has no codename", file)
}

// copySources copies the files by which apt finds the packages of a release, for another one.
func copySources(from, to, own, release string) error {
	files := []string{filepath.Join(from, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(from, "sources.list.d", pattern))
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	copied := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || err == nil && !strings.Contains(string(text), " "+own) {
			continue // somebody else's packages
		}
		if err != nil {
			return fmt.Errorf("failed to read apt's sources: %w", err)
		}
		changed := strings.ReplaceAll(string(text), " "+own, " "+release)
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), []byte(changed), 0o644); err != nil {
			return err
		}
		copied = true
	}
	if !copied {
		return fmt.Errorf("failed to find where this machine has the packages of %s from", own)
	}
	return nil
}

// download fetches a package.
func download(ctx context.Context, dir string, options []string, name string) error {
	_, err := command(ctx, dir, "apt-get", append(slices.Clone(options), "-q", "download", name)...)
	return err
}

// downloadWhole fetches a package and all that it depends on, as for a machine that has nothing.
func downloadWhole(ctx context.Context, dir string, options []string, name string) error {
	_, err := command(ctx, dir, "apt-get", append(slices.Clone(options), "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache::archives="+dir, "-q", "-y", "--no-install-recommends", "--download-only", "install", name)...)
	return err
}

// downloadDependency fetches the kernel that a package depends on.
func downloadDependency(ctx context.Context, dir string, options []string, name string) error {
	said, err := command(ctx, dir, "apt-cache", append(slices.Clone(options), "depends", "--important", name)...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(said) {
		kind, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if kind == "Depends" && strings.HasPrefix(name, "linux-image-") {
			return download(ctx, dir, options, name)
		}
	}
	return fmt.Errorf("failed to find the kernel that %s depends on: apt-cache says %q", name, said)
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
