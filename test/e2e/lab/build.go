package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// binaries are the programs of the lab as files.
type binaries struct {
	repo                                 string
	broadcastInit, dhcpRelay, stackProxy string
	smee, hegel                          string
}

// Packages of the real services; their versions are those of go.mod.
const (
	smeePackage  = "github.com/tinkerbell/smee/cmd/smee"
	hegelPackage = "github.com/tinkerbell/hegel/cmd/hegel"
)

// buildQuiet is how long a build may name no further package: the last thing that it does is to link, in silence.
const buildQuiet = 10 * time.Minute

// build builds what the lab starts. Go's build cache makes a second call cheap.
func build(ctx context.Context, opts Options) (binaries, error) {
	repo, err := Repo()
	if err != nil {
		return binaries{}, err
	}
	dir := filepath.Join(repo, "build", "bin", "lab") // apart from what "make build" builds for release
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return binaries{}, fmt.Errorf("failed to make %s: %w", dir, err)
	}
	// Labs of parallel test binaries build one after the other: two cores gain nothing from a race.
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return binaries{}, fmt.Errorf("failed to open build lock: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return binaries{}, fmt.Errorf("failed to lock builds: %w", err)
	}
	b := binaries{
		repo:          repo,
		broadcastInit: filepath.Join(dir, BroadcastInit),
		dhcpRelay:     filepath.Join(dir, DHCPRelay),
		stackProxy:    filepath.Join(dir, StackProxy),
		smee:          filepath.Join(dir, Smee),
		hegel:         filepath.Join(dir, Hegel),
	}
	var own, services []string
	for _, name := range []string{BroadcastInit, DHCPRelay, StackProxy} {
		if !slices.Contains(opts.Without, name) {
			own = append(own, "./cmd/"+name)
		}
	}
	if !opts.leavesOut(Smee) {
		services = append(services, smeePackage)
	}
	if !opts.leavesOut(Hegel) {
		services = append(services, hegelPackage)
	}
	if len(services) > 0 {
		opts.Logf("building %s (about two minutes the first time)", strings.Join(services, ", "))
		if err := goBuild(ctx, filepath.Join(repo, "test", "e2e"), dir, services); err != nil {
			return binaries{}, err
		}
	}
	if len(own) > 0 {
		opts.Logf("building %s", strings.Join(own, ", "))
		if err := goBuild(ctx, repo, dir, own); err != nil {
			return binaries{}, err
		}
	}
	return b, nil
}

func goBuild(ctx context.Context, module, out string, packages []string) error {
	said, err := os.CreateTemp("", "build-*.log")
	if err != nil {
		return fmt.Errorf("failed to make log of build: %w", err)
	}
	defer func() { _, _ = said.Close(), os.Remove(said.Name()) }()
	ctx, watch := progress.Begin(ctx, progress.Patience{
		Quiet: buildQuiet, Signs: []func() string{LastLine("go build", said.Name())},
	})
	defer watch.End()
	args := append([]string{"build", "-v", "-trimpath", "-o", out + string(filepath.Separator)}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = module, said, said
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("failed to build %s: %w: %s", strings.Join(packages, " "), watch.Why(ctx, err), text)
	}
	return nil
}

// BuildCommand builds a program of this module, cmd/NAME, and returns its file.
func BuildCommand(ctx context.Context, name string) (string, error) {
	repo, err := Repo()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(repo, "build", "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("failed to make %s: %w", dir, err)
	}
	return filepath.Join(dir, name), goBuild(ctx, filepath.Join(repo, "test", "e2e"), dir, []string{"./cmd/" + name})
}

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
