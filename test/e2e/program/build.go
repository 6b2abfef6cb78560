package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// buildQuiet is how long a build may name no further package: the last thing that it does is to link, in silence.
const buildQuiet = 10 * time.Minute

// Repo is the directory of the repository that the working directory is in.
func Repo() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/tinkerbell/stack\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("failed to find the repository: run this inside it")
		}
		dir = parent
	}
}

// built are the builds that this process has made: even one that finds all up to date takes seconds of a busy machine.
var built struct {
	sync.Mutex
	done map[string]bool
}

// Build builds packages of the module in a directory into another directory. Builds into it wait for each other. A
// program that is up to date, or was built by this process, stays as it is.
func Build(ctx context.Context, module, out string, packages []string, flags ...string) error {
	args := slices.Concat([]string{"build", "-v", "-trimpath", "-o", out + string(filepath.Separator)}, flags, packages)
	key := module + " " + strings.Join(args, " ")
	built.Lock()
	defer built.Unlock()
	if built.done[key] {
		return nil
	}
	if err := build(ctx, module, out, args); err != nil {
		return err
	}
	if built.done == nil {
		built.done = map[string]bool{}
	}
	built.done[key] = true
	return nil
}

// For builds static programs of packages for an architecture, likewise.
func For(ctx context.Context, arch, module, out string, packages ...string) error {
	args := []string{"build", "-v", "-trimpath", "-ldflags", "-s -w", "-o", out + string(filepath.Separator)}
	return build(ctx, module, out, append(args, packages...), "GOARCH="+arch)
}

// TestsFor builds the tests of a package as a static program for an architecture, NAME in the directory.
func TestsFor(ctx context.Context, arch, module, out, name, pkg string) error {
	args := []string{"test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(out, name), pkg}
	return build(ctx, module, out, args, "GOARCH="+arch)
}

// build runs go with arguments of which the last are packages. Two cores gain nothing from builds side by side.
func build(ctx context.Context, module, out string, args []string, env ...string) error {
	return locked(out, func() error { return run(ctx, module, args, env) })
}

// locked does something while nobody else does with the same directory, which it makes.
func locked(dir string, do func() error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("failed to make %s: %w", dir, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open build lock: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("failed to lock builds: %w", err)
	}
	return do()
}

func run(ctx context.Context, module string, args, env []string) error {
	said, err := os.CreateTemp("", "build-*.log")
	if err != nil {
		return fmt.Errorf("failed to make log of build: %w", err)
	}
	defer func() { _, _ = said.Close(), os.Remove(said.Name()) }()
	ctx, watch := progress.Begin(ctx, progress.Patience{
		Quiet: buildQuiet, Signs: []func() string{process.LastLine("go build", said.Name())},
	})
	defer watch.End()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = module, said, said
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if !slices.Contains(args, "-race") { // which needs cgo
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	cmd.Env = append(cmd.Env, env...)
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("failed to go %s: %w: %s", strings.Join(args, " "), watch.Why(ctx, err), text)
	}
	return nil
}

// Command builds a program of this module, cmd/NAME, and returns its file.
func Command(ctx context.Context, name string) (string, error) {
	repo, err := Repo()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(repo, "build", "bin")
	return filepath.Join(dir, name), Build(ctx, filepath.Join(repo, "test", "e2e"), dir, []string{"./cmd/" + name})
}

// ForTest builds a program of the repository, cmd/NAME, and returns its file, which tests share.
func ForTest(tb testing.TB, name string, flags ...string) string {
	tb.Helper()
	repo, err := Repo()
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(append([]string{repo, "build", "bin", "lab"}, flags...)...) // a directory of each set of flags
	if err := Build(tb.Context(), repo, dir, []string{"./cmd/" + name}, flags...); err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(dir, name)
}
