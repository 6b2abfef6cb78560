package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where a container sees its own cgroup.
const cgroupRoot = "/sys/fs/cgroup"

// enterCgroup moves the calling process into its cgroup, where it has one.
func (s *sandbox) enterCgroup() error {
	if s.Security == nil || s.Security.Cgroup == "" {
		return nil
	}
	// 0 is the writer, in whatever pid namespace it is.
	if err := os.WriteFile(filepath.Join(s.Security.Cgroup, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("failed to enter cgroup: %w", err)
	}
	var err error
	if s.cgroup, err = os.Open(s.Security.Cgroup); err != nil {
		return fmt.Errorf("failed to open cgroup: %w", err)
	}
	return nil
}

// showCgroup mounts the cgroup where a container runtime does: v2 as the root, v1 by its controller.
func (s *sandbox) showCgroup() error {
	defer func() { _ = s.cgroup.Close() }()
	from := fmt.Sprintf("/proc/self/fd/%d", s.cgroup.Fd())
	at := filepath.Join(s.Root, cgroupRoot)
	if _, err := os.Stat(filepath.Join(from, "memory.max")); errors.Is(err, fs.ErrNotExist) {
		if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("failed to mount %s: %w", cgroupRoot, err)
		}
		at = filepath.Join(at, "memory")
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
	}
	return bind(from, at)
}
