package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// ErrUnsupported is what [Preflight] returns, wrapped, where the machine or the user cannot run a lab.
var ErrUnsupported = errors.New("this machine cannot run the lab")

// Preflight tells what the lab misses on this machine, before anything is made.
func Preflight() error {
	if !initialised {
		return errors.New("failed to start lab: the program does not call lab.Init first in main or TestMain")
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs root, for network namespaces, mounts and raw sockets", ErrUnsupported)
	}
	err := onOwnThread(func() error {
		return unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	})
	if err != nil {
		return fmt.Errorf("%w: failed to make a namespace: %w", ErrUnsupported, err)
	}
	for _, dir := range []string{netnsDir, stateDir} { // the root of a user namespace may not write there
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		if err := unix.Access(dir, unix.W_OK); err != nil {
			return fmt.Errorf("%w: %s is not writable: %w", ErrUnsupported, dir, err)
		}
	}
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("%w: no tap devices: %w", ErrUnsupported, err)
	}
	// stack-proxy runs as a user of its own: the root of a small user namespace has none to offer.
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("%w: failed to read the users of this namespace: %w", ErrUnsupported, err)
	}
	if !mapped(string(users), unprivileged) {
		return fmt.Errorf("%w: it needs user %d, which this user namespace has not", ErrUnsupported, unprivileged)
	}
	return nil
}

// mapped tells whether a user namespace knows a user, by its uid_map (user_namespaces(7)).
func mapped(uidMap string, uid int) bool {
	for line := range strings.Lines(uidMap) {
		var first, outside, count int
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && uid >= first && uid-first < count {
			return true
		}
	}
	return false
}

// ForTest starts a lab that ends with the test. The test is skipped, with the reason, where labs cannot run. When
// it fails, it shows the ends of the logs.
func ForTest(tb testing.TB, opts Options) *Lab {
	tb.Helper()
	if err := Preflight(); errors.Is(err, ErrUnsupported) {
		tb.Skip(err)
	}
	if opts.RunDir == "" {
		repo, err := program.Repo()
		if err != nil {
			tb.Fatal(err)
		}
		dir, err := os.Getwd() // that of the package: others may have tests of the same name
		if err != nil {
			tb.Fatal(err)
		}
		name := strings.NewReplacer("/", "_", " ", "_").Replace(tb.Name())
		opts.RunDir = fmt.Sprintf("%s/build/lab/%s-%s", repo, filepath.Base(dir), name)
		if err := os.RemoveAll(opts.RunDir); err != nil {
			tb.Fatal(err)
		}
	}
	if opts.Logf == nil {
		opts.Logf = tb.Logf
	}
	l, err := Up(tb.Context(), opts)
	if errors.Is(err, ErrNoDHCPv6) {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Down(); err != nil {
			tb.Error(err)
		}
		if !tb.Failed() {
			return
		}
		for _, name := range startOrder {
			if l.Proc(name) != nil {
				tb.Logf("%s: %s", name, logTail(l.LogPath(name)))
			}
		}
	})
	return l
}
