package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
)

// inside marks the process that is in the namespace.
const inside = "SOAK_INSIDE"

// Enter starts this program again in a network namespace of its own and waits for its end; done is then true. In the
// program so started it brings the loopback up. The error wraps os.ErrPermission where that is not allowed.
func Enter(ctx context.Context) (done bool, err error) {
	if os.Getenv(inside) != "" {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return false, fmt.Errorf("failed to find loopback: %w", err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return false, fmt.Errorf("failed to bring loopback up: %w", err)
		}
		return false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); errors.Is(err, os.ErrPermission) {
		return true, fmt.Errorf("failed to make a network namespace (it needs root): %w", err)
	} else if err != nil {
		return true, err
	}
	return true, nil
}
