package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// startNode starts the node in a box: a process that is the first of a pid namespace, in the node's network
// namespace, with a /proc of its own. For every process of the lab, /proc/1 is this one.
func (l *Lab) startNode() error {
	cmd, err := helper("node")
	if err != nil {
		return err
	}
	cmd.Stdin = l.keep.nodeEnd
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	node, err := l.launch(cmd, Process{Name: "node", Role: RoleNode, Watch: true}, cmd.Start)
	if err != nil {
		return fmt.Errorf("failed to start node: %w", err)
	}
	l.node = node
	if err := writePid(filepath.Join(l.dir, nodeFile), node.Pid()); err != nil {
		return fmt.Errorf("failed to note node's pid: %w", err)
	}
	return nil
}

// NodePid is the pid of the node's first process, for nsenter.
func (l *Lab) NodePid() int { return l.node.Pid() }

// withPidNamespace calls f with the node's pid namespace.
func (l *Lab) withPidNamespace(f func(fd int) error) error {
	path := fmt.Sprintf("/proc/%d/ns/pid", l.node.Pid())
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("failed to open node's pid namespace: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fd)
}

// nodeInit is the node's pid 1. It ends when the other end of its standard input does, and the kernel then ends
// everything else in the pid namespace.
func nodeInit([]string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTERM)
	if err := ownMounts(); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			for { // orphans become children of pid 1
				pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
				if pid <= 0 || err != nil && !errors.Is(err, unix.EINTR) {
					break
				}
			}
		}
	}()
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// ownMounts makes a fresh mount namespace the process's own: nothing that is mounted in it is seen outside, and
// /proc and /sys show the process's own namespaces.
func ownMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("failed to make mounts private: %w", err)
	}
	return mountKernel("/")
}

func mountKernel(root string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", flags, ""); err != nil {
		return fmt.Errorf("failed to mount /proc: %w", err)
	}
	if err := unix.Mount("sysfs", filepath.Join(root, "sys"), "sysfs", flags|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("failed to mount /sys: %w", err)
	}
	return nil
}
